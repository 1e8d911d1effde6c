#pragma once

#include <cstdint>
#include <vector>

#include "kernels/view.h"
#include "models/config.h"

namespace tessera {

// Returns: frequencies of the head_dim / 2 pairs in radians per token, scaled as in transformers.
// `linear` divides all of them by the factor. `llama3` divides frequencies below one turn in
// original_context / low_freq_factor tokens. It keeps frequencies above one turn in
// original_context / high_freq_factor tokens, and interpolates between the two. `factors` divides
// each frequency by a factor of its own.
std::vector<double> rope_frequencies(const ModelConfig& config);

// Fills row p with the cosines and sines of position p. Angles are f64, because at position 100,000
// an f32 angle is wrong in its third digit after the point.
// cos, sin: [positions, head_dim / 2], dense
void fill_rope_table(const ModelConfig& config, MatrixView<float> cos, MatrixView<float> sin);

}  // namespace tessera
