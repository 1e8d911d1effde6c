#pragma once

namespace tessera {

struct DecoderStep;
struct LayerWeights;

// A feed-forward block of a decoder: hidden += block(norm(hidden)). An architecture names its block
// (models/architectures/). A mixture of experts would be another block.
using FeedForwardBlock = void(const DecoderStep& step, const LayerWeights& weights);

// The dense SwiGLU: down(silu(gate(x)) * up(x)).
FeedForwardBlock dense_feed_forward;

}  // namespace tessera
