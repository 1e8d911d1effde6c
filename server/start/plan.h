#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/settings/settings.h"

namespace tessera {

// Answer to --plan: the sequences of a whole context that fit into memory at one time, for the
// settings' KV preset and for every other one. Reads the model's headers and loads nothing.
// `memory`: bytes of weights, workspace, sampling and KV cache together, on each rank, and on a CPU
// also of requests (request_memory.h); then max_sequences and kv_memory of the settings do not
// count. 0: the memory that a start with these settings takes; where its kv_memory is 0, room for
// whole contexts, also on a GPU.
// Returns: a text of some lines.
// Errors: those of a start about the model's files and settings; InvalidArgument, with the numbers,
// if not one sequence fits.
absl::StatusOr<std::string> print_plan(const Settings& settings, int64_t memory);

}  // namespace tessera
