#pragma once

#include <cstdint>

#include "kernels/cpu/attention/pair_block.h"

namespace tessera {

// Fetches into the cache what will be read next, a little at a time while something else is
// computed: a tile's keys (or values), which lie in kKeyTilesInTile runs of the same length.
class LineFetch {
 public:
  LineFetch() = default;  // nothing

  // All of it within so many calls of some(); a little more where they do not divide it.
  LineFetch(const std::byte* const* runs, int64_t run_bytes, int64_t calls)
      : runs_(runs),
        at_(runs[0]),
        run_calls_(div_ceil(calls, kKeyTilesInTile)),
        stride_(div_ceil(run_bytes, run_calls_)),
        calls_left_(run_calls_),
        runs_left_(kKeyTilesInTile) {}

  void some() {
    for (int64_t i = 0; i < stride_; i += kLine) {
      __builtin_prefetch(at_ + i);
    }
    at_ += stride_;
    if (--calls_left_ == 0) {
      next_run();
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  void next_run() {
    if (--runs_left_ > 0) {
      at_ = *++runs_;
      calls_left_ = run_calls_;
    } else {
      stride_ = 0;
    }
  }

  const std::byte* const* runs_ = nullptr;
  const std::byte* at_ = nullptr;
  int64_t run_calls_ = 0;
  int64_t stride_ = 0;
  int64_t calls_left_ = 0;
  int32_t runs_left_ = 0;
};

}  // namespace tessera
