#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/request/completion_request.h"

namespace tessera {

// Parses and checks a body of /infill, llama-server's route for editors: input_prefix,
// input_suffix, input_extra (other files), prompt (the answer's beginning) and n_predict, beside
// the sampling options of the other dialects. Fields that have a meaning only for llama-server are
// ignored.
// Errors: InvalidArgument with the field's name (error.h).
absl::StatusOr<CompletionRequest> parse_infill_request(std::string_view body);

}  // namespace tessera
