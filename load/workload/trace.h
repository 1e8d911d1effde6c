#pragma once

#include <cstdint>
#include <istream>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::load {

// A request of a production trace.
struct TracedRequest {
  double start = 0;  // seconds after the first request
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  std::vector<int64_t> blocks;  // hash_ids; equal names mean equal prefixes; empty: unknown
};

// Reads Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens), or JSON lines of Mooncake and
// Bailian ({"timestamp", "input_length", "output_length", "hash_ids"}). A timestamp is in
// milliseconds if it is an integer (Mooncake), else in seconds (Bailian). The first line tells the
// formats apart.
// Returns: requests by ascending start.
// Errors: InvalidArgument names the line.
absl::StatusOr<std::vector<TracedRequest>> read_load_trace(std::istream& lines);

}  // namespace tessera::load
