#pragma once

#include <cstdint>

#include "kernels/cpu/tiles/pair_block.h"

namespace tessera {

// Prefetches a tile's keys (or values) in small parts while other data is computed. They are
// kKeyTilesInTile runs of the same length. Pointers are not owned.
class LineFetch {
 public:
  LineFetch() = default;  // prefetches nothing

  // Each call of some() prefetches `call_bytes` bytes. Runs that the calls do not reach are not
  // prefetched. Requires: runs: [kKeyTilesInTile], which outlives the object; call_bytes > 0.
  LineFetch(const std::byte* const* runs, int64_t run_bytes, int64_t call_bytes)
      : runs_(runs),
        at_(runs[0]),
        end_(runs[0] + run_bytes),
        run_bytes_(run_bytes),
        call_bytes_(call_bytes),
        runs_left_(kKeyTilesInTile) {}

  void some() {
    if (call_bytes_ == 0) {
      return;
    }
    for (int64_t i = 0; i < call_bytes_; i += kLine) {
      __builtin_prefetch(at_ + i);
    }
    at_ += call_bytes_;
    if (at_ >= end_) {
      next_run();
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  void next_run() {
    if (--runs_left_ > 0) {
      at_ = *++runs_;
      end_ = at_ + run_bytes_;
    } else {
      call_bytes_ = 0;
    }
  }

  const std::byte* const* runs_ = nullptr;
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;
  int64_t run_bytes_ = 0;
  int64_t call_bytes_ = 0;
  int32_t runs_left_ = 0;
};

}  // namespace tessera
