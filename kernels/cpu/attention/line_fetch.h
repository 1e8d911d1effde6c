#pragma once

#include <cstdint>

#include "kernels/cpu/attention/pair_block.h"

namespace tessera {

// Fetches into the cache what will be read next, a few lines at a time while something else is
// computed: a tile's keys (or values), which lie in kKeyTilesInTile runs of the same length.
class LineFetch {
 public:
  LineFetch() = default;  // nothing

  // All of it within so many calls of some().
  LineFetch(const std::byte* const* runs, int64_t run_bytes, int64_t calls)
      : runs_(runs),
        run_bytes_(run_bytes),
        bytes_a_call_(div_ceil(run_bytes * kKeyTilesInTile, calls * kLine) * kLine) {}

  void some() {
    for (int64_t fetched = 0; fetched < bytes_a_call_; fetched += kLine) {
      __builtin_prefetch(runs_[run_] + at_);
      at_ += kLine;
      if (at_ >= run_bytes_) {
        at_ = 0;
        if (++run_ == kKeyTilesInTile) {
          bytes_a_call_ = 0;
          return;
        }
      }
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  const std::byte* const* runs_ = nullptr;
  int64_t run_bytes_ = 0;
  int64_t bytes_a_call_ = 0;
  int64_t at_ = 0;
  int run_ = 0;
};

}  // namespace tessera
