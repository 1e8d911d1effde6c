#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/communicator.h"
#include "kernels/kv_arena.h"
#include "kernels/kv_policy.h"

namespace tessera {

struct KvCacheOptions {
  KvPreset preset = kKvPresetF16;
  std::vector<KvPreset> also = {};  // what sequences may have besides: pages serve their formats
  // Whether what sequences begin with is kept for others, and the formats in which it may be
  // encoded anew, one after the other, before it is evicted.
  bool prefix_cache = false;
  std::vector<KvFormat> ladder = {};
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t query_heads = 0;     // of the model
  int32_t sliding_window = 0;  // its sliding window; 0: none
  int32_t slots = 0;           // sequences that hold pages at one time
  int32_t context = 0;         // tokens of the longest sequence
  int64_t bytes = 0;  // of everything the cache allocates; 0: room for `slots` whole contexts
  // Of a model that is split over ranks, each has a cache for its own KV heads, as above; null: one
  // process has all heads. Outlives the cache.
  Communicator* ranks = nullptr;
};

// What of a model decides whether a policy goes with it.
struct KvModel {
  int32_t head_dim = 0;
  int32_t group = 0;           // query heads of a KV head
  int32_t sliding_window = 0;  // sliding; 0: none
  int32_t ranks = 1;           // that its KV heads are split over
};

// What holds for a policy whatever a cache serves. Errors: InvalidArgument says what does not go
// with what.
absl::Status check_policy(const KvPolicy& policy, const KvModel& model);

// The same for every policy that the options name, and for their ladder.
absl::Status check_options(const KvCacheOptions& options);

// The memory of a cache: formats, the bytes of a page that waste least, how many pages there are.
// Errors: InvalidArgument, with the numbers: formats that do not go together, memory that does not
// hold one whole context.
absl::StatusOr<KvArenaShape> shape_of(const KvCacheOptions& options);

}  // namespace tessera
