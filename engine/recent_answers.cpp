#include "engine/recent_answers.h"

#include <algorithm>

namespace tessera {
namespace {

// Returns: the tokens behind the last occurrence of `newest` that something follows.
std::span<const int32_t> followed(std::span<const int32_t> text, std::span<const int32_t> newest) {
  for (size_t end = text.size(); end-- > newest.size();) {
    if (text[end - 1] == newest.back() &&
        std::ranges::equal(text.subspan(end - newest.size(), newest.size()), newest)) {
      return text.subspan(end);
    }
  }
  return {};
}

}  // namespace

RecentAnswers::RecentAnswers() : answers_(kAnswers) {
  for (Answer& answer : answers_) {
    answer.salt.reserve(kLongestSalt);
    answer.tokens.reserve(kTokens);
  }
}

void RecentAnswers::add(std::string_view salt, std::span<const int32_t> answer) {
  if (salt.size() > kLongestSalt || answer.size() <= kMatch) {
    return;
  }
  Answer& place = answers_[next_];
  next_ = (next_ + 1) % answers_.size();
  place.salt.assign(salt);
  const std::span<const int32_t> kept = answer.first(std::min(answer.size(), size_t{kTokens}));
  place.tokens.assign(kept.begin(), kept.end());
}

void RecentAnswers::clear() {
  for (Answer& answer : answers_) {
    answer.tokens.clear();
  }
}

int32_t RecentAnswers::guess(std::string_view salt, std::span<const int32_t> tokens,
                             std::span<int32_t> out) const {
  if (tokens.size() < kMatch || out.empty()) {
    return 0;
  }
  for (size_t age = 1; age <= answers_.size(); ++age) {
    const Answer& answer = answers_[(next_ + answers_.size() - age) % answers_.size()];
    if (answer.tokens.empty() || answer.salt != salt) continue;
    const std::span<const int32_t> found = followed(answer.tokens, tokens.last(kMatch));
    if (!found.empty()) {
      const size_t count = std::min(found.size(), out.size());
      std::ranges::copy(found.first(count), out.begin());
      return static_cast<int32_t>(count);
    }
  }
  return 0;
}

}  // namespace tessera
