#pragma once

#include <cstdint>
#include <vector>

#include "kernels/view.h"
#include "models/config.h"

namespace tessera {

// The frequencies of the head_dim / 2 pairs in radians per token, stretched as the config says and
// as transformers computes it: linear divides all by the factor; llama3 divides those that turn
// slower than once in original_context / low_freq_factor tokens, keeps those that turn faster than
// once in original_context / high_freq_factor, and goes smoothly from one to the other.
std::vector<double> rope_frequencies(const ModelConfig& config);

// Fills row p with the cosines and sines of position p. Angles are f64: at position 100,000 an f32
// angle is wrong in its third digit after the point.
// cos, sin: [positions, head_dim / 2], dense
void fill_rope_table(const ModelConfig& config, MatrixView<float> cos, MatrixView<float> sin);

}  // namespace tessera
