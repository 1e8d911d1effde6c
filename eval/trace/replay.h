#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_presets.h"
#include "eval/trace/trace.h"

namespace tessera {

// A KV preset and a ladder to replay a trace with.
struct ReplaySubject {
  std::string name;
  KvPreset preset;
  std::vector<KvFormat> ladder;
};

struct ReplayResult {
  int64_t prompt_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t low_tokens = 0;  // hit tokens in a format that they were demoted to
  int32_t prefix_block_tokens = 0;
  PrefixCacheStats cache;

  double hit_share() const {
    return prompt_tokens == 0
               ? 0.0
               : static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens);
  }
};

// Replays all requests in order through a real KvCache of `bytes` bytes, without a model. Each
// request attaches the longest cached prefix, gets pages for the rest of its prompt, and inserts
// its whole prompt. Answers are not cached, because traces do not contain their text. The cache has
// one layer and one KV head. Nothing is stored in pages, so a demotion encodes nothing.
// Errors: InvalidArgument if the bytes do not hold the longest prompt.
absl::StatusOr<ReplayResult> replay(std::span<const TraceRequest> trace,
                                    const ReplaySubject& subject, int32_t head_dim, int64_t bytes);

}  // namespace tessera
