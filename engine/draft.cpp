#include "engine/draft.h"

#include <algorithm>
#include <numeric>

namespace tessera {
namespace {

// Returns: true if the tokens before `end` are the newest ones.
bool matches(std::span<const int32_t> tokens, size_t end, size_t match) {
  return std::ranges::equal(tokens.subspan(end - match, match), tokens.last(match));
}

// Returns: the end of the last earlier occurrence of the newest `match` tokens; 0: there is none.
size_t last_occurrence(std::span<const int32_t> tokens, size_t match) {
  for (size_t end = tokens.size() - 1; end >= match; --end) {
    if (tokens[end - 1] == tokens.back() && matches(tokens, end, match)) {
      return end;
    }
  }
  return 0;
}

}  // namespace

int32_t Draft::guess(std::span<const int32_t> tokens, std::span<int32_t> out) const {
  if (std::ssize(tokens) <= match_ || out.empty()) {
    return 0;
  }
  const size_t end = last_occurrence(tokens, static_cast<size_t>(match_));
  if (end == 0) {
    return 0;
  }
  const std::span<const int32_t> followed = tokens.subspan(end);
  const size_t count = std::min({followed.size(), out.size(), static_cast<size_t>(length_)});
  std::ranges::copy(followed.first(count), out.begin());
  return static_cast<int32_t>(count);
}

void Draft::learn(int32_t drafted, int32_t accepted) {
  if (accepted == drafted) {
    length_ = std::min(length_ * 2, kMostDrafted);
    match_ = kShortestMatch;
  } else {
    length_ = std::max(length_ / 2, 1);
    match_ = accepted == 0 ? std::min(match_ + 1, kLongestMatch) : kShortestMatch;
  }
}

int32_t share_rows(int32_t room, std::span<int32_t> drafts) {
  int32_t all = std::accumulate(drafts.begin(), drafts.end(), 0);
  for (; all > std::max(room, 0); --all) {
    --*std::ranges::max_element(drafts);
  }
  return all;
}

}  // namespace tessera
