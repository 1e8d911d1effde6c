#pragma once

#include "absl/status/statusor.h"
#include "engine/request_options.h"

namespace tessera {

struct Settings;

// Returns: the sampling parameters that the model of the settings recommends (with_recommended),
// which it logs; the usual defaults with --generation-config none.
// Errors: those of read_recommended_sampling().
absl::StatusOr<SamplingParams> sampling_of_model(const Settings& settings);

}  // namespace tessera
