#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/kv_cache.h"
#include "eval/trace/trace.h"

namespace tessera {

// A way to keep what was computed.
struct ReplaySubject {
  std::string name;
  KvPreset preset;
  std::vector<KvFormat> ladder;
};

struct ReplayResult {
  int64_t prompt_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t low_tokens = 0;  // of them, in a format that they were demoted to
  int32_t prefix_block_tokens = 0;
  PrefixCacheStats cache;

  double hit_share() const {
    return prompt_tokens == 0
               ? 0.0
               : static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens);
  }
};

// All requests one after the other through a real KvCache of `bytes` bytes, without a model: each
// begins with the longest prefix that is there, gets pages for the rest of its prompt and leaves
// all of it. Nobody's answer is kept, because traces do not say what it was. All of it is one layer
// of one KV head; nothing is stored in pages, so nothing is encoded anew when it is demoted.
// Errors: InvalidArgument where the bytes do not hold the longest prompt.
absl::StatusOr<ReplayResult> replay(std::span<const TraceRequest> trace,
                                    const ReplaySubject& subject, int32_t head_dim, int64_t bytes);

}  // namespace tessera
