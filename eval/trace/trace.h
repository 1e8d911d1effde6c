#pragma once

#include <cstdint>
#include <istream>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// A request of a trace in Mooncake's format ("Mooncake: A KVCache-centric Disaggregated
// Architecture for LLM Serving"). It holds the arrival time, the lengths of prompt and answer, and
// a name for each block of kTraceBlock tokens of the prompt. Blocks of one name are equal and
// follow equal blocks.
struct TraceRequest {
  int64_t milliseconds = 0;
  int32_t prompt_tokens = 0;
  int32_t answer_tokens = 0;
  std::vector<int64_t> blocks;  // the last one may be partly filled
};
inline constexpr int32_t kTraceBlock = 512;

// Reads lines of {"timestamp", "input_length", "output_length", "hash_ids"}.
// Errors: InvalidArgument names the line.
absl::StatusOr<std::vector<TraceRequest>> read_trace(std::istream& lines);

// Statistics of generated conversations, those of Mooncake's published conversation trace. All
// requests begin with one block. Then 61 % are new, with a lognormal number of blocks of their own.
// The others continue an earlier one a lognormal time after its last turn, with a lognormal number
// of additional blocks.
struct TraceStatistics {
  int32_t requests = 12031;
  double requests_per_second = 3.4;
  double continued_share = 0.387;     // share of requests that continue an earlier one
  double first_blocks_log = 2.34;     // mean of the logarithm
  double first_blocks_spread = 1.21;  // standard deviation of the logarithm
  double more_blocks_log = 1.16;
  double more_blocks_spread = 1.11;
  double pause_log = 11.78;  // mean of the logarithm of milliseconds
  double pause_spread = 0.99;
  int32_t answer_tokens = 343;
  int32_t max_blocks = 246;
};
std::vector<TraceRequest> generate_trace(const TraceStatistics& statistics, uint64_t seed);

}  // namespace tessera
