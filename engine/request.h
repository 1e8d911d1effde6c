#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/kv_presets.h"
#include "engine/kv/kv_usage.h"
#include "engine/pooling.h"
#include "engine/request_options.h"
#include "engine/token_grammar.h"

namespace tessera {

class LoraAdapter;
struct PrefixTransfer;

using RequestId = uint64_t;

// Log probability by the model's own logits, before bias, penalties and temperature.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::span<const TokenLogprob> top;  // likeliest first
  int32_t rank = 0;  // of the chosen token among all, from 1; 0: not known (top_logprobs is 0)
};

// The beginning of a prompt that stays in the prefix cache until `ttl` after its last use, even if
// pages run out. Unlike Cache::pin it changes nothing of what enters the cache.
struct KeptPrefix {
  static constexpr int32_t kAll = std::numeric_limits<int32_t>::max();  // with the answer
  int32_t tokens = kAll;
  std::chrono::seconds ttl{300};
};
inline constexpr size_t kMaxKeptPrefixes = 2;

// What the prefix cache has of a prompt that was computed.
struct PromptInCache {
  int32_t cached_tokens = 0;  // that it had before
  // Tokens from the beginning that stay for each of RequestInput::kept; 0: its pin was not taken.
  std::array<int32_t, kMaxKeptPrefixes> kept = {};
};

enum class FinishReason : uint8_t {
  stop,       // a stop id or the model's end of sequence
  length,     // max_tokens, or the context is full
  cancelled,  // by the client or its disconnect, by the deadline, or by Engine::stop
  failed,     // an error in the engine, see Finish::status
};

// Final event of a sample.
struct Finish {
  FinishReason reason = FinishReason::stop;
  // An error with `failed`. If cancelled: DeadlineExceeded by the deadline, ResourceExhausted by
  // the queue timeout.
  absl::Status status;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;      // prompt tokens taken from the prefix cache
  int32_t completion_tokens = 0;  // number of on_token calls
  // With `stop`, the token that ended the sample. It is no token of the completion.
  std::optional<int32_t> stop_token = {};
  // By EngineOptions::clock: from submission to the first slot, and from there to the first token.
  // No value if the sample ended before.
  std::optional<std::chrono::duration<double>> queue_time = {};
  std::optional<std::chrono::duration<double>> prefill_time = {};

  struct Kv {
    KvPreset preset;  // the preset in effect
    KvUsage usage;    // at the end; if cancelled while swapped out, as of the swap-out
  };
  Kv kv = {};
};

// Receives the events of one sample. Called on the engine thread: must not block, and must not
// call the engine, except Engine::cancel. on_finish is called exactly once for every sample of an
// accepted request. It is the last call; after it the engine releases the sink.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Called once, before the first on_token or, if there is none, before on_finish.
  virtual void on_prompt_in_cache(const PromptInCache& /*prompt*/) {}
  // For requests with prompt_logprobs: once for each prompt token except the first, in order,
  // before the first on_token. `logprobs` is valid during the call.
  virtual void on_prompt_logprobs(const TokenLogprobs& /*logprobs*/) {}
  // For requests with observe_logits: the model's own logits after the token at `position`. logits:
  // [vocab], valid during the call. Called once for each position in ascending order, before the
  // on_token of the following token. The last token of a sequence is not computed, so it has no
  // logits, unless it is the last prompt token (max_tokens 0).
  virtual void on_logits(int32_t /*position*/, std::span<const float> /*logits*/) {}
  // For requests with a pooling: the prompt's embedding, [hidden], not normalised, valid during the
  // call. Called once, before the first on_token, unless the sample ends before its prompt is
  // computed.
  virtual void on_embedding(std::span<const float> /*embedding*/) {}
  // For requests with top_logprobs: before each on_token. `logprobs` is valid during the call.
  virtual void on_logprobs(const TokenLogprobs& /*logprobs*/) {}
  virtual void on_token(int32_t token) = 0;
  virtual void on_finish(const Finish& finish) = 0;
};

// The tenant of a request. Tenants share the engine in proportion to their shares (tenant_clock.h);
// prefixes are kept apart by the salt of each request.
struct TenantOfRequest {
  int32_t id = 0;     // 0: the only tenant; then nothing is divided
  int32_t share = 1;  // 1 to kMaxTenantShare
  // Tokens that the tenant's pins may keep. A pin beyond this is ignored.
  int64_t pin_tokens = std::numeric_limits<int64_t>::max();
};
inline constexpr int32_t kMaxTenantShare = 1000;

// Part of a request that the service computes from the client's.
struct RequestInput {
  std::vector<int32_t> prompt;  // not empty, each in [0, vocab)
  int32_t max_tokens = 16;      // >= 0; the context is a further limit; 0: prefill only
  // Teacher forcing, for evaluation: these tokens replace the sampler's choices, one per step, as
  // if the model had generated them. The sequence ends after the last one with `length`; max_tokens
  // and stop ids are ignored. Prompt and forced tokens must fit the context.
  std::vector<int32_t> forced;
  bool observe_logits = false;  // call on_logits
  // Calls on_embedding with the prompt's embedding. Such a request has one sink.
  std::optional<Pooling> pooling;
  // KV preset; no value: EngineOptions::kv. Its name is reported unchanged in Finish.
  std::optional<KvPreset> kv;
  // Deadline, by EngineOptions::clock. Within one step after it the request, waiting or running,
  // ends with `cancelled` and DeadlineExceeded.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  // Each sample's tokens follow it; null: any tokens. It ends samples by allowing only ends of
  // sequence, so `ignore_eos` must be false. Forced tokens need not follow it.
  std::shared_ptr<const TokenGrammar> grammar;
  // The queue timeout, by the same clock. A request that is not admitted by then ends with
  // `cancelled` and ResourceExhausted. One that is not expected to be is refused (RequestQueue).
  std::optional<std::chrono::steady_clock::time_point> start_by;
  TenantOfRequest tenant;
  // Changes the model's products for this request (Engine::load_adapter), which holds it to its
  // end. Its prefixes are shared only between requests with an adapter of the same fingerprint.
  // Null: the model as it is.
  std::shared_ptr<const LoraAdapter> adapter;
  std::vector<KeptPrefix> kept;  // at most kMaxKeptPrefixes
  // Of a prefetch: blocks that leave the cache or enter it. Null: none.
  std::shared_ptr<PrefixTransfer> transfer;
  std::vector<std::shared_ptr<EventSink>> sinks;  // at least one, none of them null
};

// A request to the engine, in token ids. Each sink gets its own sample: a sequence that runs, ends
// and is cancelled independently (see Engine::submit for its id). Every sink gets all events, those
// of the prompt included. The prompt is computed once and its pages are shared, as long as one
// sample still runs when the others are admitted.
struct EngineRequest : RequestOptions, RequestInput {};

// Returns: true if a prompt fits the context, with one token more unless `max_tokens` is 0.
inline bool fits_context(int64_t prompt_tokens, std::optional<int32_t> max_tokens,
                         int64_t context) {
  return prompt_tokens + (max_tokens == 0 ? 0 : 1) <= context;
}

}  // namespace tessera
