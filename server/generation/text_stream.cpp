#include "server/generation/text_stream.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace tessera {

namespace {

// Position of a stop string in a text: [begin, end).
struct Match {
  std::size_t begin;
  std::size_t end;
};

// Returns: the stop string that ends first, and the longest of several that end there. So the
// result does not depend on token borders.
std::optional<Match> first_match(std::string_view text, const std::vector<std::string>& stop) {
  std::optional<Match> first;
  for (const std::string& s : stop) {
    const std::size_t begin = text.find(s);
    if (begin == std::string_view::npos) {
      continue;
    }
    const Match match{begin, begin + s.size()};
    if (!first || match.end < first->end ||
        (match.end == first->end && match.begin < first->begin)) {
      first = match;
    }
  }
  return first;
}

// Returns: length of the longest suffix of `text` that is a proper prefix of `stop`.
std::size_t possible_beginning(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) {
      return n;
    }
  }
  return 0;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, Detokenizer::Options options,
                       std::vector<std::string> stop, bool include_stop)
    : detokenizer_(tokenizer, std::move(options)),
      stop_(std::move(stop)),
      include_stop_(include_stop) {
  std::erase(stop_, "");
}

std::string TextStream::push(int32_t token) {
  if (stopped_) {
    return {};
  }
  held_ += detokenizer_.push(token);
  return release(false);
}

std::string TextStream::finish() {
  if (stopped_) {
    return {};
  }
  held_ += detokenizer_.finish();
  return release(true);
}

std::string TextStream::release(bool final) {
  if (const std::optional<Match> match = first_match(held_, stop_)) {
    stopped_ = true;
    found_ = held_.substr(match->begin, match->end - match->begin);
    held_.resize(include_stop_ ? match->end : match->begin);
    return std::exchange(held_, {});
  }
  std::size_t held = 0;
  if (!final) {
    for (const std::string& s : stop_) {
      held = std::max(held, possible_beginning(held_, s));
    }
  }
  std::string certain = held_.substr(0, held_.size() - held);
  held_.erase(0, certain.size());
  return certain;
}

}  // namespace tessera
