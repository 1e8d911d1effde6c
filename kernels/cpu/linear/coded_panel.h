#pragma once

#include <cstdint>

#include "kernels/matrix/weight.h"

namespace tessera {

inline constexpr int64_t kPanelRows = 32;  // outputs of a panel
inline constexpr int64_t kUnitRowBytes = kPanelRows * 4;

// Places of scales and blocks in a panel of integers, in bytes from its start.
struct CodedPanel {
  WeightEncoding stored;

  constexpr explicit CodedPanel(WeightFormat format) : stored(encoding(format)) {}

  constexpr int64_t blocks_of_a_scale() const { return stored.scale_inputs() / stored.block; }
  constexpr int64_t row_scale_bytes() const { return stored.row_scale ? kUnitRowBytes : 0; }
  constexpr int64_t scale_bytes() const { return kPanelRows * stored.scale_bytes(); }
  constexpr int64_t factor_bytes() const { return kPanelRows * stored.factor_bytes(); }
  constexpr int64_t high_bytes() const {
    return stored.bits > 4 && stored.bits < 8 ? kUnitRowBytes : 0;
  }
  constexpr int64_t block_bytes() const {
    return factor_bytes() + kPanelRows * stored.block * stored.bits / 8;
  }
  // Returns: bytes of the blocks before `block` that have its scale.
  constexpr int64_t before(int64_t block) const {
    return block % blocks_of_a_scale() * block_bytes();
  }
  constexpr int64_t scales_at(int64_t block) const {
    return row_scale_bytes() +
           block / blocks_of_a_scale() * (scale_bytes() + blocks_of_a_scale() * block_bytes());
  }
  constexpr int64_t block_at(int64_t block) const {
    return scales_at(block) + scale_bytes() + before(block);
  }
};
static_assert(CodedPanel(WeightFormat::int5).high_bytes() == 32 * 32 * 1 / 8);
static_assert(CodedPanel(WeightFormat::int6_super).high_bytes() == 32 * 16 * 2 / 8);
static_assert(CodedPanel(WeightFormat::int8_row).block_at(2) == 128 + 64 + 2 * 1024);

}  // namespace tessera
