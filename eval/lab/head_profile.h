#pragma once

#include <cstdint>
#include <vector>

#include "eval/lab/model.h"
#include "eval/lab/prompt.h"

namespace tessera::lab {

// What each query head attends to while a text repeats itself, [layers * heads]: means over the
// queries of all repetitions.
struct HeadProfile {
  std::vector<float> echo;       // attention to earlier tokens that equal the query's
  std::vector<float> induction;  // attention to the tokens behind those
  std::vector<float> around;     // attention to the induction's tokens and 4 on each side
};

// Returns: the profile of a prompt whose tokens repeat after `period` tokens.
HeadProfile profile_of(const Prompt& prompt, int32_t period);

// Lets a model read `period` random tokens four times, as RazorAttention does; fewer, if its
// context is shorter.
HeadProfile measure_heads(Model& model, int32_t period);

// Returns: the `share` of heads with the largest scores, as 0 or 1 for each, at least one.
std::vector<bool> best_heads(const std::vector<float>& scores, double share);

}  // namespace tessera::lab
