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

int32_t DraftLength::choose(float step_cost) const {
  // On a CPU a further row of a small step takes about a tenth of a step with one
  // (docs/measurements/2026-11-29-speculation.md).
  constexpr float kRowCost = 0.1f;
  int32_t best = 0;
  float best_speed = 1;
  float right = 1;   // chance that all tokens so far are right
  float tokens = 1;  // expected: the step itself chooses one
  for (int32_t count = 1; count <= kMostOfModel; ++count) {
    right *= chosen_share_;
    tokens += right;
    const float speed = tokens / (1 + static_cast<float>(count) * (kRowCost + step_cost));
    if (speed > best_speed) {
      best_speed = speed;
      best = count;
    }
  }
  return best;
}

void DraftLength::learn(int32_t drafted, int32_t accepted) {
  constexpr float kNewest = 0.06f;  // weight of one token
  for (int32_t i = 0; i < std::min(accepted + 1, drafted); ++i) {
    const float right = i < accepted ? 1.0f : 0.0f;
    chosen_share_ += kNewest * (right - chosen_share_);
  }
}

void DraftLength::rest() {
  constexpr float kRecovery = 0.002f;
  chosen_share_ = std::min(chosen_share_ + kRecovery, 1.0f);
}

int32_t share_rows(int32_t room, std::span<int32_t> drafts) {
  int32_t all = std::accumulate(drafts.begin(), drafts.end(), 0);
  for (; all > std::max(room, 0); --all) {
    --*std::ranges::max_element(drafts);
  }
  return all;
}

}  // namespace tessera
