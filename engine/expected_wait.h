#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace tessera {

// Expected time in the queue, from the rate at which waiting sequences were admitted (Little's
// law): a sequence behind n others waits for n + 1 admissions. Plain data and no clock of its own.
class ExpectedWait {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::duration<double>;

  // The first sequence begins to wait.
  void begin(Time now) { last_ = now; }
  // A waiting sequence was admitted.
  void admitted(Time now) {
    intervals_ = std::min(intervals_ + 1, kIntervals);
    mean_ += (Duration(now - last_) - mean_) / intervals_;
    last_ = now;
  }
  // Returns: the expected wait of a new sequence behind `waiting` others. Zero if none waits, or if
  // none was ever admitted. At least the time since the last admission, so that it grows while
  // nothing is admitted.
  Duration behind(int64_t waiting, Time now) const {
    if (waiting == 0) {
      return Duration::zero();
    }
    const Duration since = now - last_;
    const Duration turns = static_cast<double>(waiting + 1) * mean_;
    return turns > since ? turns : since;
  }

 private:
  static constexpr double kIntervals = 20;  // the mean follows about this many admissions

  Time last_;
  Duration mean_ = Duration::zero();
  double intervals_ = 0;
};

}  // namespace tessera
