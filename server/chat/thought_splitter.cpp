#include "server/chat/thought_splitter.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

constexpr std::string_view kBegin = "<think>";
constexpr std::string_view kEnd = "</think>";
constexpr std::string_view kBlanks = " \t\r\n";
// More blanks than these in a row are not held back: each piece looks at all of them.
constexpr std::size_t kMaxHeldBlanks = 1024;

void strip_left(std::string& text) {
  text.erase(0, text.find_first_not_of(kBlanks));
}

}  // namespace

std::string ThoughtSplitter::push(std::string_view text, bool end, std::string& reasoning) {
  held_ += text;
  if (place_ == Place::first) {
    const std::size_t blanks = std::min(held_.find_first_not_of(kBlanks), held_.size());
    const std::string_view rest = std::string_view(held_).substr(blanks);
    const bool possible = rest.size() < kBegin.size() && kBegin.starts_with(rest);
    if (!end && possible && blanks <= kMaxHeldBlanks) {
      return {};
    }
    place_ = rest.starts_with(kBegin) ? Place::thought : Place::answer;
    held_.erase(0, place_ == Place::thought ? blanks + kBegin.size() : 0);
  }
  if (place_ == Place::thought) {
    if (!any_) {
      strip_left(held_);
    }
    const std::size_t found = held_.find(kEnd);
    std::size_t keep = 0;
    if (found == std::string::npos && !end) {
      keep = std::min(kEnd.size() - 1, held_.size());
      while (!kEnd.starts_with(std::string_view(held_).substr(held_.size() - keep))) {
        --keep;
      }
    }
    const std::size_t size = found == std::string::npos ? held_.size() - keep : found;
    // Blanks before the end of the thought belong to neither part.
    std::size_t shown = std::string_view(held_).substr(0, size).find_last_not_of(kBlanks) + 1;
    shown = size - shown > kMaxHeldBlanks ? size : shown;
    reasoning += held_.substr(0, shown);
    any_ = any_ || shown > 0;
    if (found == std::string::npos) {
      held_.erase(0, end ? held_.size() : shown);
      return {};
    }
    held_.erase(0, found + kEnd.size());
    place_ = Place::after;
  }
  if (place_ == Place::after) {
    strip_left(held_);
    place_ = held_.empty() ? Place::after : Place::answer;
  }
  return std::exchange(held_, {});
}

}  // namespace tessera
