#pragma once

#include "engine/request_options.h"
#include "models/checkpoint/recommended_sampling.h"

namespace tessera {

struct GenerateRequest;

// Returns: the defaults of sampling parameters with those that a model recommends. A value outside
// the range of its parameter is left out, with a warning in the log.
SamplingParams with_recommended(const RecommendedSampling& recommended);

// Sets the parameters that a request leaves out (GenerateRequest::given) to those of `defaults`.
void fill_sampling(const SamplingParams& defaults, GenerateRequest& request);

// Returns: the number of the fewest digits that is this float, for JSON: 0.7, not 0.699999988.
double shortest_number(float value);

}  // namespace tessera
