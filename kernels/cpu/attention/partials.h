#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/tiles/pair_block.h"

namespace tessera {

// Softmaxes of splits in scratch, one for each pair of a row's split: maximum, sum, padding to
// kHeader floats, values. If a shared run began a split, it is the state of the pair in the block:
// maximum, values, then sums and zeros, [kKeyTile] each. The item then continues with the same
// bits. `scratch` is not owned and must outlive this.
class Partials {
 public:
  // Returns: bytes of scratch for `partials` partials.
  static int64_t bytes(int64_t partials, int32_t head_dim) {
    return partials * floats(head_dim) * int64_t{sizeof(float)};
  }

  Partials(void* scratch, int32_t head_dim)
      : floats_(static_cast<float*>(scratch)), head_dim_(head_dim) {}

  Partial at(int64_t index) const {
    float* first = floats_ + index * floats(head_dim_);
    return {first, first + 1, first + kHeader};
  }

  void save(const PairBlock& block, int32_t pair, int64_t index) const {
    const Partial to = at(index);
    *to.maximum = block.maxima[pair];
    std::copy_n(block.values + int64_t{pair} * head_dim_, head_dim_, to.values);
    std::copy_n(block.sums + pair * kLanes, kLanes, sums(to));
    std::copy_n(block.zeros + pair * kLanes, kLanes, sums(to) + kLanes);
  }
  void restore(PairBlock& block, int32_t pair, int64_t index) const {
    const Partial from = at(index);
    block.maxima[pair] = *from.maximum;
    std::copy_n(from.values, head_dim_, block.values + int64_t{pair} * head_dim_);
    std::copy_n(sums(from), kLanes, block.sums + pair * kLanes);
    std::copy_n(sums(from) + kLanes, kLanes, block.zeros + pair * kLanes);
  }

 private:
  static constexpr int64_t kHeader = 16;
  static constexpr int64_t kLanes = KvPageLayout::kKeyTile;

  static int64_t floats(int32_t head_dim) {
    return kHeader + round_up(head_dim, kHeader) + 2 * kLanes;
  }
  float* sums(const Partial& partial) const {
    return partial.values + round_up(head_dim_, kHeader);
  }

  float* floats_;
  int32_t head_dim_;
};

}  // namespace tessera
