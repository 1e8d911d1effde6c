#pragma once

#include <cstring>

#include "kernels/cpu/sampling/weigh.h"
#include "kernels/sampling.h"

namespace tessera {

// The loop of weigh() over vectors: Lanes::kCount tokens at a time, with weights of 64 bits.
template <class Lanes>
inline void weigh_lanes(const WeighArgs& args) {
  constexpr int64_t kCount = Lanes::kCount;
  int64_t i = 0;
  for (; i + kCount <= args.count; i += kCount) {
    Lanes::store(args.weights + i, Lanes::weights(args.logits + i, args.best, args.temperature));
  }
  if (i < args.count) {
    float logits[kCount] = {};
    uint64_t weights[kCount];
    const auto left = static_cast<size_t>(args.count - i);
    for (float& logit : logits) {
      logit = args.best;
    }
    std::memcpy(logits, args.logits + i, left * sizeof(float));
    Lanes::store(weights, Lanes::weights(logits, args.best, args.temperature));
    std::memcpy(args.weights + i, weights, left * sizeof(uint64_t));
  }
}

}  // namespace tessera
