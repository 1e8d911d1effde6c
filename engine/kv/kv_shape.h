#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/kv_presets.h"
#include "kernels/communicator.h"
#include "kernels/kv/kv_arena.h"
#include "kernels/kv/kv_policy.h"

namespace tessera {

class PrefixEvents;
struct ModelConfig;

// Returns: KvCacheOptions::windows of a model.
std::vector<int32_t> windows_of(const ModelConfig& model);

struct KvCacheOptions {
  KvPreset preset = kKvPresetF16;
  std::vector<KvPreset> also = {};  // further presets of sequences; pages fit their formats too
  // prefix_cache: keep the prefixes of sequences for others. ladder: formats to which prefix blocks
  // are demoted, one after the other, before they are evicted.
  bool prefix_cache = false;
  std::vector<KvFormat> ladder = {};
  // A policy that replays: unlocked blocks of its format become compressed sections. It is the only
  // step of a ladder.
  std::optional<KvPolicy> section_step = std::nullopt;
  // Residual buffers hold codes of 8 bits. All presets must store in formats of codes.
  bool coded_residuals = false;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t query_heads = 0;
  // [layers], positions that a query sees; 0: all. Empty: no layer has a window.
  std::vector<int32_t> windows = {};
  // The backend's ops leave policies out of layers with a window.
  bool policies_beside_windows = true;
  // Profile of the whole model, [layers, KV heads on all ranks]; empty: it has none.
  std::vector<HeadProfile> head_profiles = {};
  int32_t slots = 0;      // maximum number of sequences that hold pages at one time
  int32_t context = 0;    // tokens of the longest sequence
  int64_t bytes = 0;      // of all that the cache allocates; 0: room for `slots` whole contexts
  bool populate = false;  // make all of it resident at once
  // With tensor parallelism each rank has a cache for its own heads, and the head counts above are
  // those of one rank. Null: one process has all heads. Not owned; outlives the cache.
  Communicator* ranks = nullptr;
  // Receives blocks that enter and leave the prefix cache. Null: none does. Not owned; outlives it.
  PrefixEvents* prefix_events = nullptr;
};

// Properties of a model that decide if it can be used with a policy.
struct KvModel {
  int32_t head_dim = 0;
  int32_t group = 0;           // query heads for each KV head
  int32_t sliding_window = 0;  // in tokens, of the layers that have one; 0: none
  int32_t ranks = 1;           // its KV heads are split over this number of ranks
  bool profiled = false;       // it has a profile of its KV heads
  bool whole_layers = true;    // some layers have no window, and policies apply to them
};

KvModel model_of(const KvCacheOptions& options);

// Checks a policy against a model, for any cache.
// Errors: InvalidArgument names the inconsistent fields, or the property of the model that excludes
// the policy.
absl::Status check_policy(const KvPolicy& policy, const KvModel& model);

// The same for every policy in `options`, and for the ladder.
absl::Status check_options(const KvCacheOptions& options);

// Returns: the memory layout of a cache: its formats, the page size in bytes that wastes the least,
// and the number of pages.
// Errors: InvalidArgument, with the numbers: formats that cannot be combined, too many formats,
// memory that cannot hold one whole context, more pages than page ids.
absl::StatusOr<KvArenaShape> shape_of(const KvCacheOptions& options);

// Returns: the most pages that one sequence of a whole context takes.
int64_t context_pages(const KvArenaShape& shape);

// The same for a policy of one sequence, in a cache of that shape.
// Errors: also InvalidArgument names the format, or the feature that this cache does not serve.
absl::Status check_served(const KvPolicy& policy, const KvModel& model, const KvArenaShape& shape);

// Returns: OK if pages of `format` exist in the arena.
// Errors: InvalidArgument names `field`, the format and those that exist.
absl::Status check_format(KvFormat format, std::string_view field, const KvArenaShape& shape);

// Returns: pages of `page_tokens` tokens that a row keeps of a section, as a mean over rows; 0 if
// the policy does not replay.
int32_t section_pages(const KvPolicy& policy, int32_t page_tokens);

// Returns: the tiers of a policy, as indices into the arena's formats.
// Requires: the policy is served.
KvTiers tiers_of(const KvPolicy& policy, const KvArenaShape& shape);

}  // namespace tessera
