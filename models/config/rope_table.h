#pragma once

#include <cstdint>
#include <vector>

#include "kernels/matrix/view.h"
#include "models/config/model_config.h"

namespace tessera {

// Returns: frequencies of the rotary_width() / 2 pairs in radians per token, scaled as in
// transformers.
// context: the tokens of the longest sequence
// `linear` divides all of them by the factor. `dynamic` changes none, because a sequence never
// exceeds the model's context. `llama3` divides frequencies below one turn in
// original_context / low_freq_factor tokens. It keeps frequencies above one turn in
// original_context / high_freq_factor tokens, and interpolates between the two. `yarn` (arXiv
// 2309.00071, section 3.2) does so by the index of the pair, between those that turn beta_fast and
// beta_slow times in original_context tokens. `factors` and `longrope` divide each frequency by a
// factor of its own; longrope has other factors for contexts beyond original_context.
std::vector<double> rope_frequencies(const ModelConfig& config, int64_t context);

// Fills row p with the cosines and sines of position p, times RopeScaling::attention_factor. Angles
// are f64, because at position 100,000 an f32 angle is wrong in its third digit after the point.
// grows: for queries that grow with the position (RopeScaling::query_growth)
// cos, sin: [positions, rotary_width() / 2], dense
void fill_rope_table(const ModelConfig& config, bool grows, MatrixView<float> cos,
                     MatrixView<float> sin);

}  // namespace tessera
