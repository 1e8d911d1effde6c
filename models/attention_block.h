#pragma once

#include <cstdint>

namespace tessera {

struct DecoderStep;
struct LayerWeights;

// An attention block of a decoder: hidden += block(norm(hidden)). It stores the step's keys and
// values in the pages of `layer`. An architecture names its block (models/architectures/).
using AttentionBlock = void(const DecoderStep& step, const LayerWeights& weights, int32_t layer);

// Grouped-query attention with RoPE. q, k and v have biases if the layer has weights for them.
AttentionBlock attend;

}  // namespace tessera
