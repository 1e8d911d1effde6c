#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/kv_usage.h"
#include "engine/kv/prefix_cache.h"
#include "engine/request.h"
#include "kernels/kv_page.h"
#include "kernels/kv_policy.h"
#include "models/transformer.h"

namespace tessera {

struct EngineOptions {
  int32_t max_step_tokens = 512;  // of one step, prefill and decode; >= max_sequences
  int32_t max_sequences = 64;     // that run at once
  int32_t max_queue = 256;        // samples that wait; more are refused at the door
  int32_t context = 2048;         // tokens a sequence may have, prompt and completion
  KvPreset kv = kKvPresetK8V4;    // of requests that ask for none
  // What requests may ask for besides: pages have a size that serves their formats too.
  std::vector<KvPreset> kv_also = {};
  // Whether what prompts have in common is computed once and kept as long as there is room, and the
  // formats to which what nobody uses is demoted before it is evicted, the coarsest last. No value:
  // k4v2 where requests begin in k8v4, and a ladder goes with the model; otherwise none.
  bool prefix_cache = true;
  std::optional<std::vector<KvFormat>> kv_ladder = std::nullopt;
  // Of pages, windows and tables together, on each rank; 0: room for max_sequences whole contexts.
  int64_t kv_bytes = 0;
  // The model's, which is split over them (see Engine); null: one process has it whole. Outlives
  // the engine.
  Communicator* ranks = nullptr;
  // By which deadlines pass; asked on the engine's thread, and on the clients'.
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
};

// Counters and gauges, read at any time from any thread: a consistent copy, taken at a step's end.
// Pages, bytes and tokens of heads are those of all ranks together.
struct EngineStats {
  int32_t running = 0;  // samples
  int32_t waiting = 0;
  int64_t pages_total = 0;
  int64_t pages_free = 0;  // those of the prefix cache that nobody uses included
  int64_t page_bytes = 0;
  int32_t page_tokens = 0;     // of the default's high tier that a page holds
  int64_t residual_bytes = 0;  // of the open groups of max_sequences sequences
  int64_t table_bytes = 0;     // of their page tables, and of lists of pages
  int64_t token_capacity = 0;  // tokens that fit into the pages
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  // prefilled, recomputed ones counted again
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t kv_demotions = 0;       // tokens of one KV head that went to the low tier
  int64_t kv_dropped_tokens = 0;  // and that were dropped
  // The prefix cache: tokens of admitted prompts, and those of them that were there; the smallest
  // run that is shared, 0 without a cache.
  int64_t cache_query_tokens = 0;
  int64_t cache_hit_tokens = 0;
  int32_t prefix_block_tokens = 0;
  PrefixCacheStats cache = {};
  int32_t formats = 0;
  KvFormatPages format_pages[kMaxKvLayouts] = {};  // in use, of so many formats
};

// Runs requests over one model with continuous batching. One thread (started by start()) owns all
// sequence and page state; submit and cancel only put a message into a bounded channel.
//
// Of a model that is split over ranks every rank has an engine, made with the same options, and all
// of them do the same steps (engine/ranks.h). Rank 0 leads: it alone is asked for anything but
// follow() and what is const.
class Engine {
 public:
  // Errors: InvalidArgument names the option that makes no sense, and the numbers: KV memory that
  // cannot hold even one sequence of `context` tokens, a context beyond the model's, a KV policy
  // that makes no sense or does not go with the model or with the others. ResourceExhausted when
  // the system refuses the memory. Requires: the model was loaded for steps of max_step_tokens
  // tokens, max_sequences sequences and the context, and over the same ranks. Of ranks, collective,
  // and InvalidArgument also where they differ in what they must have alike.
  static absl::StatusOr<std::unique_ptr<Engine>> create(const EngineOptions& options,
                                                        std::unique_ptr<Transformer> model,
                                                        const Backend& backend, Stream stream);
  virtual ~Engine() = default;  // as stop()

  // Any thread. The id of the request's first sample; that of sample i is i higher. Errors, with
  // nothing accepted and no sink called: InvalidArgument (empty or too long a prompt, ids out of
  // range, a KV policy that is not served, more samples than the queue takes: with the numbers),
  // ResourceExhausted (the queue has no room for all samples), Unavailable (draining or stopped).
  virtual absl::StatusOr<RequestId> submit(EngineRequest request) = 0;

  // Any thread. This one sample ends with `cancelled` and the pages it does not share are free
  // within one step, unless it has already ended; an unknown id is ignored.
  virtual void cancel(RequestId id) = 0;

  // Any thread. Empties the prefix cache, pins included, within one step; what running sequences
  // use stays with them.
  virtual void flush_cache() = 0;

  // Starts the engine's thread, once; it sleeps while there is nothing to do.
  virtual void start() = 0;

  // A rank that does not lead: steps with the one that does, on the caller's thread, until that one
  // has stopped.
  virtual void follow() = 0;

  // Without start(): one step on the caller's thread. False: there is nothing to do.
  virtual bool step() = 0;

  // Any thread. Accepts nothing more; what waits or runs goes on to its end.
  virtual void drain() = 0;

  // Any thread. Nothing waits or runs, and every on_finish is through.
  virtual bool idle() const = 0;

  // Accepts nothing more; what is still inside ends as `cancelled`, each with its on_finish, before
  // this returns. Joins the thread. Any thread, but no sink; without start(), the one that steps.
  virtual void stop() = 0;

  virtual EngineStats stats() const = 0;
  virtual const EngineOptions& options() const = 0;  // with defaults resolved
  virtual const ModelConfig& config() const = 0;     // of the whole model
};

}  // namespace tessera
