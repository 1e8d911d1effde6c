#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/tier/tier_options.h"

namespace tessera {

// The median of the last values: one that a busy machine has delayed changes nothing.
class RecentMedian {
 public:
  static constexpr size_t kLeast = 4;
  static constexpr size_t kMost = 8;

  void add(double value) { values_[count_++ % kMost] = value; }
  // Returns: 0 before there are kLeast values.
  double value() const {
    std::array<double, kMost> sorted = values_;
    const size_t count = std::min(count_, kMost);
    std::sort(sorted.begin(), sorted.begin() + count);
    return count < kLeast ? 0 : sorted[count / 2];
  }

 private:
  std::array<double, kMost> values_ = {};
  size_t count_ = 0;
};

// Decides whether the blocks that a store has of a prompt are read or computed: what takes less
// time, by the rates of the last reads and steps. Not thread-safe.
class RestoreRates {
 public:
  // Blocks that would be computed are read nevertheless once in so many decisions, so that a store
  // that has become faster is noticed.
  static constexpr int32_t kTrials = 16;

  // fixed: rates to use instead of measured ones.
  explicit RestoreRates(const std::optional<KvTierRates>& fixed) : fixed_(fixed) {}

  // A step has computed so many tokens of prompts.
  void note_step(int64_t tokens, double seconds) {
    if (tokens > 0 && seconds > 0) {
      token_seconds_.add(seconds / static_cast<double>(tokens));
    }
  }
  // Seconds to compute a token of a prompt; 0: not known yet.
  double token_seconds() const {
    return fixed_.has_value() ? fixed_->token_seconds : token_seconds_.value();
  }
  // block_seconds: to read a block from the store, as measured; 0: not known yet.
  bool reads(size_t store, double block_seconds, int32_t block_tokens) {
    const double read = fixed_.has_value() ? fixed_->block_seconds[store] : block_seconds;
    const double compute = token_seconds() * block_tokens;
    if (read == 0 || compute == 0 || read <= compute) {
      return true;
    }
    return ++refusals_ % kTrials == 0 && !fixed_.has_value();
  }

 private:
  const std::optional<KvTierRates> fixed_;
  RecentMedian token_seconds_;
  int64_t refusals_ = 0;
};

}  // namespace tessera
