#include "engine/device_budget.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/kv/kv_shape.h"
#include "engine/sampler.h"
#include "models/decode_steps.h"
#include "models/transformer.h"

namespace tessera {
namespace {

constexpr int64_t kLaunchesOfLayer = 12;  // docs/cuda.md, "A step"
constexpr int64_t kOtherLaunches = 8;     // embedding, the last norm, copies of the plan

// Returns: number of recorded decode steps over pages of that shape.
int64_t recordings_of(const EngineOptions& options, const KvArenaShape& shape) {
  KvPagesView pages;
  KvTokenScore any = {};
  pages.token_scores = shape.token_scores ? &any : nullptr;
  for (size_t tier = 0; tier < shape.formats.size(); ++tier) {
    pages.layouts[tier] = shape.layout(tier);
  }
  return std::ssize(decode_sizes({.tokens = options.max_step_tokens,
                                  .sequences = options.max_sequences,
                                  .context = options.context},
                                 pages));
}

}  // namespace

absl::StatusOr<int64_t> free_kv_bytes(const DeviceMemoryUse& use, const StartMemory& start) {
  const int64_t recorded = start.recordings * start.launches * kRecordedLaunchBytes;
  const int64_t reserved = use.total / kReservedShare;
  const int64_t left = use.free - start.sampling - recorded - reserved;
  if (left <= 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "kv-memory 0 takes the device's free memory, but none is left: ", use.free, " of ",
        use.total, " bytes are free beside the weights, of which the sampler takes ",
        start.sampling, ", ", start.recordings, " recorded steps ", recorded, ", and ", reserved,
        " are reserved"));
  }
  return left;
}

absl::StatusOr<int64_t> free_kv_bytes(const DeviceMemoryUse& use, const EngineOptions& options,
                                      const ModelConfig& model, const Backend& backend,
                                      Stream stream) {
  KvCacheOptions cache = kv_cache_options(options, model, backend);
  cache.slots = 1;  // only formats and layouts are read, which do not depend on it
  TESSERA_ASSIGN_OR_RETURN(const KvArenaShape shape, shape_of(cache));
  const bool records =
      backend.record != nullptr && (options.ranks == nullptr || options.ranks->records_sums());
  const StartMemory start{.sampling = Sampler::bytes_for(
                              model.vocab, TransformerOptions().max_logits_rows, backend, stream),
                          .recordings = records ? recordings_of(options, shape) : 0,
                          .launches = kLaunchesOfLayer * model.layers + kOtherLaunches};
  absl::StatusOr<int64_t> own = free_kv_bytes(use, start);
  if (options.ranks == nullptr) {
    return own;
  }
  std::vector<int64_t> of_ranks(static_cast<size_t>(options.ranks->ranks()));
  const int64_t bytes = own.ok() ? *own : 0;
  options.ranks->all_gather({&bytes, 1}, of_ranks);
  const int64_t least = *std::min_element(of_ranks.begin(), of_ranks.end());
  if (own.ok() && least == 0) {
    return absl::ResourceExhaustedError(
        "kv-memory 0 takes the device's free memory, but on another rank none is left");
  }
  return own.ok() ? least : own;
}

}  // namespace tessera
