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

// A feed-forward block of a decoder: hidden += block(norm(hidden)). An architecture names its block
// (models/architectures/).
using FeedForwardBlock = void(const DecoderStep& step, const LayerWeights& weights);

// The dense SwiGLU: down(silu(gate(x)) * up(x)).
FeedForwardBlock dense_feed_forward;

// The same with a norm behind it: hidden += norm(block(norm(hidden))). Gemma 3's.
FeedForwardBlock dense_feed_forward_between_norms;

// A mixture of SwiGLUs: the weighted sum of those that the router chooses for a token, and of one
// that serves every token if the model has it.
FeedForwardBlock expert_feed_forward;

}  // namespace tessera
