#pragma once

#include <cstdint>

namespace tessera {

struct DecoderStep;
struct LayerWeights;

// An attention block of a decoder: hidden += block(norm(hidden)). It stores the step's keys and
// values in the pages of `layer`. An architecture names its block (models/architectures/).
using AttentionBlock = void(const DecoderStep& step, const LayerWeights& weights, int32_t layer);

// Plans the attention of all layers, if the backend has an op for it. Runs before the first block.
void plan_attention(const DecoderStep& step);

// Grouped-query attention with RoPE. q, k and v have biases if the layer has weights for them.
AttentionBlock attend;

// The same with a norm of each head of q and of k, before RoPE.
AttentionBlock attend_with_qk_norm;

// The same with a norm behind it too: hidden += norm(block(norm(hidden))). Gemma 3's.
AttentionBlock attend_between_norms;

}  // namespace tessera
