#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>

namespace tessera::simt::emulation {

// The order in which the emulator resumes the clusters of a grid, the blocks of a cluster, the
// warps of a block and the lanes of a warp. CUDA promises none, so results must be the same under
// all of them. The environment variable TESSERA_EMULATED_ORDER names one:
//   ascending     threads take turns; the first one begins
//   descending    the last warp runs until it must wait for others, then the one before
//   shuffled:N    a random order from seed N, another one for each turn; some get ahead of others
// The default is shuffled:1.
class Schedule {
 public:
  enum class Order { ascending, descending, shuffled };

  // Errors: aborts if `name` is none of the above.
  explicit Schedule(const std::string& name);

  // The schedule of this process. Prints its name once to stderr, to repeat a failure by it.
  static Schedule& of_process();

  // Arranges the numbers from 0 on in the order of the next turn.
  void arrange(std::span<int32_t> numbers);
  // Returns: whether a warp, or a block, that has moved is resumed again before others.
  bool goes_on();

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  Order order_ = Order::ascending;
  std::mt19937 random_;
};

}  // namespace tessera::simt::emulation
