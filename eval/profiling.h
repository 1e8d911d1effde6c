#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "eval/command_line.h"

namespace tessera {

// Measures the model's KV heads, and writes the profile beside the checkpoint
// (models/checkpoint/head_profile_file.h). Policies whose allocator reads a profile then work with
// this model.
// Returns: a table of the losses, and the name of the file.
// Errors: those of files, model, tasks and measure_head_losses; Internal if the profile cannot be
// written.
absl::StatusOr<std::string> run_profiling(const EvalOptions& options);

}  // namespace tessera
