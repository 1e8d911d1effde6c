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
  int64_t host_tokens = 0;  // hit tokens that came from the tier in host memory
  int64_t disk_tokens = 0;  // and those from the tier on disk
  int64_t low_tokens = 0;   // hit tokens in a format that they were demoted to
  int32_t prefix_block_tokens = 0;
  PrefixCacheStats cache;

  double share_of(int64_t tokens) const {
    return prompt_tokens == 0 ? 0.0
                              : static_cast<double>(tokens) / static_cast<double>(prompt_tokens);
  }
  double hit_share() const { return share_of(hit_tokens); }
};

struct ReplayBytes {
  int64_t cache = 0;  // of the KvCache
  int64_t host = 0;   // of evicted blocks in host memory; 0: no such tier
  int64_t disk = 0;
};

// Replays all requests in order through a real KvCache, without a model. Each
// request attaches the longest cached prefix, gets pages for the rest of its prompt, and inserts
// its whole prompt. Answers are not cached, because traces do not contain their text. The cache has
// one layer and one KV head. Nothing is stored in pages, so a demotion encodes nothing. Tiers keep
// no bytes (CountedStore); a block is in them before the next request arrives.
// Errors: InvalidArgument if the bytes do not hold the longest prompt.
absl::StatusOr<ReplayResult> replay(std::span<const TraceRequest> trace,
                                    const ReplaySubject& subject, int32_t head_dim,
                                    const ReplayBytes& bytes);

}  // namespace tessera
