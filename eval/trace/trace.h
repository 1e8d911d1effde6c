#pragma once

#include <cstdint>
#include <istream>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// A request of a trace in Mooncake's format ("Mooncake: A KVCache-centric Disaggregated
// Architecture for LLM Serving"): when it came, how long prompt and answer are, and a name for each
// block of kTraceBlock tokens of the prompt. Blocks of one name are equal and stand behind equal
// ones.
struct TraceRequest {
  int64_t milliseconds = 0;
  int32_t prompt_tokens = 0;
  int32_t answer_tokens = 0;
  std::vector<int64_t> blocks;  // the last one may be partly filled
};
inline constexpr int32_t kTraceBlock = 512;

// Lines of {"timestamp", "input_length", "output_length", "hash_ids"}. InvalidArgument names the
// line.
absl::StatusOr<std::vector<TraceRequest>> read_trace(std::istream& lines);

// Conversations with the statistics of Mooncake's published conversation trace: all begin with one
// block; then 61 % are new, with a lognormal number of blocks of their own, and the others go on
// with an earlier one a lognormal time after its last turn, with a lognormal number of blocks more.
struct TraceStatistics {
  int32_t requests = 12031;
  double requests_per_second = 3.4;
  double go_on = 0.387;               // of the requests
  double first_blocks_log = 2.34;     // mean of the logarithm
  double first_blocks_spread = 1.21;  // and its standard deviation
  double more_blocks_log = 1.16;
  double more_blocks_spread = 1.11;
  double pause_log = 11.78;  // of milliseconds
  double pause_spread = 0.99;
  int32_t answer_tokens = 343;
  int32_t max_blocks = 246;
};
std::vector<TraceRequest> generate_trace(const TraceStatistics& statistics, uint64_t seed);

}  // namespace tessera
