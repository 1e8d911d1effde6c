#pragma once

#include <cstring>

#include "kernels/cpu/linear/panel.h"
#include "kernels/matrix/half.h"

namespace tessera {

// One output's integers in a panel, for plain code. Does not own the panel.
class CodedLane {
 public:
  CodedLane(WeightFormat format, const std::byte* panel, int64_t lane)
      : places_(format), panel_(panel), lane_(lane) {}

  float scale(int64_t block) const { return number(block, 0); }
  // Requires: the format has minimums.
  float minimum(int64_t block) const {
    if (!places_.stored.zero) {
      return number(block, 1);
    }
    const std::byte* zeros = panel_ + places_.scales_at(block) + kPanelRows * 2;
    return scale(block) * static_cast<float>(static_cast<int8_t>(zeros[lane_]));  // exact
  }
  // Returns: the factor of all scales and minimums.
  float row_scale() const {
    float scale = 1;
    if (places_.stored.row_scale) {
      std::memcpy(&scale, panel_ + lane_ * 4, sizeof(scale));
    }
    return scale;
  }

  // codes: [block]
  void codes(int64_t block, uint8_t* codes) const {
    const int64_t bits = places_.stored.bits;
    const std::byte* high = panel_ + places_.block_at(block) + places_.factor_bytes();
    const std::byte* low = high + places_.high_bytes();
    for (int64_t part = 0; part < places_.stored.block / 4; ++part) {
      uint32_t four = bits == 8 ? unit(low, part) : unit(low, part / 2) >> 4 * (part % 2) & kLow;
      if (places_.high_bytes() > 0) {
        const uint32_t mask = (kEach << (bits - 4)) - kEach;
        four |= (unit(high, 0) >> (bits - 4) * part & mask) << 4;
      }
      std::memcpy(codes + 4 * part, &four, sizeof(four));
    }
  }

 private:
  static constexpr uint32_t kLow = 0x0f0f0f0f;
  static constexpr uint32_t kEach = 0x01010101;

  uint32_t unit(const std::byte* units, int64_t index) const {
    uint32_t bits;
    std::memcpy(&bits, units + (index * kPanelRows + lane_) * 4, sizeof(bits));
    return bits;
  }
  // Returns: the scale (which = 0) or the minimum (1). With superblocks the product is exact.
  float number(int64_t block, int64_t which) const {
    f16 half;
    const int64_t place = which * kPanelRows + lane_;
    std::memcpy(&half, panel_ + places_.scales_at(block) + place * 2, sizeof(half));
    if (places_.stored.superblock == 0) {
      return to_f32(half);
    }
    const auto factor = static_cast<int8_t>(panel_[places_.block_at(block) + place]);
    return to_f32(half) * static_cast<float>(factor);
  }

  CodedPanel places_;
  const std::byte* panel_;
  int64_t lane_;
};

}  // namespace tessera
