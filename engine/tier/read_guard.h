#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace tessera {

// Decides whether prompts wait for the stores. When several in a row waited in vain, the stores are
// suspended: prompts are computed, until a block that is read for a trial comes in time. Trials
// become rarer while the disk does not answer. Not thread-safe.
class ReadGuard {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;
  static constexpr int32_t kTimeouts = 3;
  static constexpr Milliseconds kInTime{250};  // of one block
  static constexpr Milliseconds kMostPause{60'000};

  explicit ReadGuard(Milliseconds first_pause) : first_pause_(first_pause), pause_(first_pause) {}

  bool suspended() const { return suspended_; }
  int64_t suspensions() const { return suspensions_; }
  // When the next trial is due, while suspended.
  Clock::time_point next_trial() const { return next_trial_; }

  // A prompt has waited in vain.
  void note_timeout(Clock::time_point now) {
    ++timeouts_;
    if (!suspended_ && timeouts_ >= kTimeouts) {
      suspended_ = true;
      ++suspensions_;
      next_trial_ = now + pause_;
    }
  }
  // A block was read for a prompt, after so long.
  void note_block(Clock::duration took) {
    if (took < kInTime && !suspended_) {
      timeouts_ = 0;
      pause_ = first_pause_;
    }
  }
  // Ends the suspension if the trial's block came in time. The next timeout then suspends again.
  void note_trial(bool answered, Clock::time_point now) {
    suspended_ = !answered;
    timeouts_ = kTimeouts - 1;
    pause_ = std::min(2 * pause_, kMostPause);
    next_trial_ = now + pause_;
  }

 private:
  const Milliseconds first_pause_;
  Milliseconds pause_;
  int32_t timeouts_ = 0;  // since a block last came in time
  bool suspended_ = false;
  int64_t suspensions_ = 0;
  Clock::time_point next_trial_;
};

}  // namespace tessera
