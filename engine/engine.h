#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/draft.h"
#include "engine/format_check.h"
#include "engine/kv/kv_presets.h"
#include "engine/kv/kv_shape.h"
#include "engine/kv/kv_usage.h"
#include "engine/kv/prefix_cache.h"
#include "engine/request.h"
#include "engine/tier/tier_options.h"
#include "engine/tier/tier_stats.h"
#include "kernels/kv/kv_page.h"
#include "kernels/kv/kv_policy.h"
#include "models/transformer.h"

namespace tessera {

struct EngineOptions {
  int32_t max_step_tokens = 512;  // tokens of one step, prefill and decode; >= max_sequences
  int32_t max_sequences = 64;     // sequences that run at once
  int32_t max_queue = 256;        // samples that wait; submit() refuses more
  int32_t context = 2048;         // maximum tokens of a sequence, prompt and completion
  KvPreset kv = kKvPresetK8V4;    // default for requests without a preset
  // Further presets that requests may use. The page size takes their formats into account.
  std::vector<KvPreset> kv_also = {};
  // prefix_cache: compute common prefixes of prompts once, and keep them while there is room.
  // kv_ladder: formats to which unlocked prefix blocks are demoted before they are evicted, the
  // coarsest last. No value means the default ladder (default_ladder()) where format_checks says
  // that it holds on this checkpoint, else an empty one.
  bool prefix_cache = true;
  std::optional<std::vector<KvFormat>> kv_ladder = std::nullopt;
  // Formats that were measured on this checkpoint.
  std::vector<FormatCheck> format_checks = {};
  // A ladder of one step that compresses unlocked prefix blocks to sections, by a preset that
  // replays (engine/background_replay.h). Then kv_ladder is empty.
  std::optional<KvPreset> kv_section_step = std::nullopt;
  // For requests without one: the share of its policy's budget that a sequence keeps at least when
  // pages run out (RequestOptions::kv_floor).
  float kv_floor = 1;
  // Bytes of pages, residual buffers and tables together, on each rank. 0: room for max_sequences
  // whole contexts.
  int64_t kv_bytes = 0;
  // Residual buffers hold codes of 8 bits, for half of their memory. All presets and the ladder
  // must have formats of codes.
  bool kv_coded_residuals = false;
  // Profile of the whole model's KV heads, [layers, kv_heads]. No value: that of its config.
  std::optional<std::vector<HeadProfile>> kv_head_profiles = std::nullopt;
  // Drafts tokens of sequences that decode, where a step has few rows (engine/speculation.h). No
  // text changes by it.
  bool speculation = false;
  // A step of the draft model (Engine::create), in steps of the model. 0: by their weights' bytes.
  float draft_step_cost = 0;
  // Where prefix blocks go that are evicted, and come from when they are needed again.
  KvTierOptions tiers = {};
  bool kv_populate = false;  // take all of its memory at the start, not as pages are written
  // The communicator of the model, which is split over its ranks (see Engine). Null: one process
  // has the whole model. Not owned; outlives the engine.
  Communicator* ranks = nullptr;
  // Receives the blocks that enter and leave the prefix cache, on the engine thread
  // (PrefixBlocks::report), and their copies in the stores, on the stores' threads. Null: not
  // wanted. Not owned; outlives the engine.
  PrefixEvents* prefix_events = nullptr;
  // Clock of all deadlines. Called on the engine thread and on client threads.
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
};

// Counters and gauges: a consistent copy, taken at the end of a step. Pages, bytes and per-head
// token counts are sums over all ranks.
struct EngineStats {
  int32_t running = 0;  // samples
  int32_t waiting = 0;
  int64_t pages_total = 0;
  int64_t pages_free = 0;  // unlocked pages of the prefix cache included
  int64_t page_bytes = 0;
  int32_t page_tokens = 0;     // tokens of one page in the default preset's high tier
  int64_t residual_bytes = 0;  // residual buffers of max_sequences slots
  int64_t table_bytes = 0;     // page tables of these slots, and lists of pages
  int64_t token_capacity = 0;  // tokens that fit into the pages
  int64_t swapped_bytes = 0;   // of the host's memory, in use by swapped-out sequences
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  // prefilled tokens; recomputed ones are counted again
  int64_t generated_tokens = 0;
  // Drafts of one sequence in one step, their tokens, and those of them that were chosen, in all
  // and by their place in the draft.
  int64_t drafts = 0;
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
  std::array<int64_t, kMostDrafted> accepted_at = {};
  int64_t preemptions = 0;
  int64_t kv_tightenings = 0;      // steps in which budgets of sequences were tightened
  int64_t kv_replayed_tokens = 0;  // tokens of replays (KvPolicy::section), beside prompt_tokens
  int64_t kv_demotions = 0;        // tokens of one KV head demoted to the low tier
  int64_t kv_dropped_tokens = 0;   // tokens of one KV head dropped
  // Prefix cache: prompt tokens of admitted sequences, those of them that were cached, and tokens
  // of one prefix block (0 without a cache).
  int64_t cache_query_tokens = 0;
  int64_t cache_hit_tokens = 0;
  int32_t prefix_block_tokens = 0;
  PrefixCacheStats cache = {};
  KvTierStats tiers = {};
  int32_t formats = 0;
  KvFormatPages format_pages[kMaxKvLayouts] = {};  // pages in use; the first `formats` are valid
};

// Returns: the step that a ladder without a value takes if the format holds on the checkpoint.
// k4v2r, where the default preset keeps every token in k8v4, the model allows a ladder (no sliding
// window) and the backend serves k4v2r; else none.
std::vector<KvFormat> default_ladder(const EngineOptions& options, const ModelConfig& model,
                                     const Backend& backend);

// Returns: the largest step of an engine, for the transformer that it gets.
StepLimits step_limits(const EngineOptions& options);

// Returns: the KV cache that Engine::create makes for a model. `model`: with tensor parallelism,
// the share of one rank.
KvCacheOptions kv_cache_options(const EngineOptions& options, const ModelConfig& model,
                                const Backend& backend);

// Runs requests over one model with continuous batching. One thread, started by start(), owns all
// sequences and pages. submit() and cancel() only push a message into a bounded channel.
//
// Life of a request: submit() checks it, makes one Sequence per sample and puts them into the
// RequestQueue. At the next step the engine thread receives them. The Scheduler admits each
// sequence, which gets a slot of the KvCache and begins with the cached prefix of its prompt.
// Each step computes a chunk of its prompt or one new token, and sends tokens to its EventSink.
// A preempted sequence loses its slot and waits again. At the end on_finish is called once.
//
// With tensor parallelism every rank has an engine with the same options, and all engines do the
// same steps (engine/ranks.h). Rank 0 is the leader. On other ranks only follow() and const
// functions may be called.
class Engine {
 public:
  // draft: a second model that drafts tokens with options.speculation; null: none
  // Requires: the model was loaded for step_limits(options), and over the same ranks; a draft model
  // for DraftModel::limits(options), and there is one rank. Collective over the ranks.
  // Errors:
  //   InvalidArgument names the wrong option, with the numbers: KV memory that cannot hold one
  //     sequence of `context` tokens; a context beyond the model's; a KV policy that is
  //     inconsistent or does not fit the model or the other policies; ranks with different options
  //     or models; options.tiers of several ranks, of a device's pages, of a model with a sliding
  //     window, or without a prefix cache.
  //   ResourceExhausted: the system refuses the memory.
  //   Those of BlockTiers::open, and with a draft model those of DraftModel::create.
  static absl::StatusOr<std::unique_ptr<Engine>> create(const EngineOptions& options,
                                                        std::unique_ptr<Transformer> model,
                                                        const Backend& backend, Stream stream,
                                                        std::unique_ptr<Transformer> draft = {});
  virtual ~Engine() = default;  // calls stop()

  // Any thread. Queues a request.
  // Returns: the id of its first sample; sample i has that id plus i.
  // Errors, with no request queued and no sink called:
  //   InvalidArgument, with the numbers: empty or too long prompt, token ids out of range, a KV
  //     policy that is not served, more samples than max_queue.
  //   Unimplemented: an adapter with several ranks, or with a section step.
  //   ResourceExhausted: the queue has no room for all samples, or the expected wait is longer than
  //     the queue timeout or the deadline. It has the time of a retry (retry_after.h).
  //   Unavailable: draining or stopped.
  virtual absl::StatusOr<RequestId> submit(EngineRequest request) = 0;

  // Any thread. Ends this one sample with `cancelled` within one step, unless it has already ended.
  // The pages that it does not share are then free. An unknown id is ignored.
  virtual void cancel(RequestId id) = 0;

  // Any thread, also during a step, which it does not delay. An adapter for requests
  // (EngineRequest::adapter), and its bytes before it is loaded.
  // Errors: those of Transformer::measure_adapter and load_adapter.
  virtual absl::StatusOr<int64_t> measure_adapter(const std::filesystem::path& path) const = 0;
  virtual absl::StatusOr<std::shared_ptr<const LoraAdapter>> load_adapter(
      const std::filesystem::path& path) const = 0;

  // Any thread. Empties the prefix cache within one step, pins included. Running sequences keep the
  // blocks that they use.
  virtual void flush_cache() = 0;

  // Starts the engine thread, at most once. The thread sleeps while there is no work.
  virtual void start() = 0;

  // Ranks other than the leader: runs the leader's steps on the caller's thread. Returns after the
  // leader has stopped.
  virtual void follow() = 0;

  // Without start(): runs one step on the caller's thread.
  // Returns: false if there is no work.
  virtual bool step() = 0;

  // Any thread. Refuses new requests; waiting and running ones continue to their end.
  virtual void drain() = 0;

  // Any thread.
  // Returns: true if no request waits or runs and every on_finish has returned.
  virtual bool idle() const = 0;

  // Refuses new requests and joins the engine thread. Unfinished samples end with `cancelled`, and
  // their on_finish is called before this returns. Any thread, but not from a sink. Without
  // start(): only the thread that calls step().
  virtual void stop() = 0;

  virtual EngineStats stats() const = 0;  // any thread
  // Any thread. Returns: the prefix tree as it was at the end of a recent step; when the engine
  // sleeps, as it is.
  virtual PrefixOutline outline() const = 0;
  // Any thread. Returns: true if requests may have this policy.
  virtual bool serves(const KvPolicy& policy) const = 0;
  virtual const EngineOptions& options() const = 0;  // with defaults resolved
  virtual const ModelConfig& config() const = 0;     // of the whole model, not of one rank's part
};

}  // namespace tessera
