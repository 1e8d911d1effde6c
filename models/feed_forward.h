#pragma once

namespace tessera {

struct DecoderStep;
struct LayerWeights;

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
