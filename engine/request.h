#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/kv_usage.h"
#include "kernels/kv/kv_policy.h"

namespace tessera {

using RequestId = uint64_t;

// Sampling parameters. Defaults are those of OpenAI's API and vLLM, and so is the order in which
// the fields are applied: min_tokens, logit_bias, penalties, temperature, min_p, top_k, top_p.
struct SamplingParams {
  struct Bias {
    int32_t token = 0;
    float value = 0;  // added to the token's logit
  };

  float temperature = 1.0f;  // 0: greedy; of equal logits the lowest id is chosen
  float top_p = 1.0f;        // (0, 1]: the likeliest tokens that together reach this probability
  int32_t top_k = 0;         // 0: all
  // The same seed, request and weights give the same text. Sample i of a request uses seed + i.
  uint64_t seed = 0;

  float min_p = 0;  // [0, 1]: minimum fraction of the likeliest token's probability
  // > 0: for tokens of prompt and completion, divides positive logits and multiplies others.
  float repetition_penalty = 1;
  float presence_penalty = 0;   // [-2, 2]: subtracted once if the token was generated
  float frequency_penalty = 0;  // [-2, 2]: subtracted as often as the token was generated
  std::vector<Bias> logit_bias;
  int32_t min_tokens = 0;  // stop ids and end of sequence are forbidden before this many tokens
  // Report the chosen token's log probability, and this number of the likeliest tokens.
  std::optional<int32_t> top_logprobs;
  std::optional<int32_t> prompt_logprobs;  // the same for each prompt token except the first
};

inline constexpr int32_t kMaxTopLogprobs = 20;  // OpenAI's limit

// Errors: InvalidArgument names the field that is out of range, with its value.
absl::Status check_sampling(const SamplingParams& params, int32_t vocab);

// Log probability by the model's own logits, before bias, penalties and temperature.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::span<const TokenLogprob> top;  // likeliest first
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
  absl::Status status;  // an error with `failed`; DeadlineExceeded if cancelled by the deadline
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;      // prompt tokens taken from the prefix cache
  int32_t completion_tokens = 0;  // number of on_token calls
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
  // For requests with prompt_logprobs: once for each prompt token except the first, in order,
  // before the first on_token. `logprobs` is valid during the call.
  virtual void on_prompt_logprobs(const TokenLogprobs& /*logprobs*/) {}
  // For requests with observe_logits: the model's own logits after the token at `position`. logits:
  // [vocab], valid during the call. Called once for each position in ascending order, before the
  // on_token of the following token. The last token of a sequence is not computed, so it has no
  // logits, unless it is the last prompt token (max_tokens 0).
  virtual void on_logits(int32_t /*position*/, std::span<const float> /*logits*/) {}
  // For requests with top_logprobs: before each on_token. `logprobs` is valid during the call.
  virtual void on_logprobs(const TokenLogprobs& /*logprobs*/) {}
  virtual void on_token(int32_t token) = 0;
  virtual void on_finish(const Finish& finish) = 0;
};

// A request to the engine, in token ids. Each sink gets its own sample: a sequence that runs, ends
// and is cancelled independently (see Engine::submit for its id). Every sink gets all events, those
// of the prompt included. The prompt is computed once and its pages are shared, as long as one
// sample still runs when the others are admitted.
struct EngineRequest {
  std::vector<int32_t> prompt;  // not empty, each in [0, vocab)
  SamplingParams sampling;
  int32_t max_tokens = 16;        // >= 0; the context is a further limit; 0: prefill only
  std::vector<int32_t> stop_ids;  // end the sequence and are not emitted
  bool ignore_eos = false;
  int32_t priority = 0;  // lower runs first, as in vLLM; see order_of
  // Teacher forcing, for evaluation: these tokens replace the sampler's choices, one per step, as
  // if the model had generated them. The sequence ends after the last one with `length`; max_tokens
  // and stop ids are ignored. Prompt and forced tokens must fit the context.
  std::vector<int32_t> forced;
  bool observe_logits = false;  // call on_logits
  // KV preset; no value: EngineOptions::kv. Its name is reported unchanged in Finish.
  std::optional<KvPreset> kv;
  // Prefixes are shared only between requests with equal salts.
  std::string cache_salt;
  struct Cache {
    bool use = true;  // match cached prefixes and insert computed ones
    // Pin the inserted path for `ttl`, even if pages run out. Ignored if the pins would leave too
    // little room.
    bool pin = false;
    std::chrono::seconds ttl{300};
  };
  Cache cache = {};
  // The coarsest format of a cached prefix that the request accepts, one of the ladder's; no value:
  // all of them. Lossy policies and deterministic requests accept their own format only.
  std::optional<KvFormat> cache_accept;
  // Deadline, by EngineOptions::clock. Within one step after it the request, waiting or running,
  // ends with `cancelled` and DeadlineExceeded.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  // The text depends only on this request, its seed and the weights, not on other requests or free
  // memory. Results never depend on chunks or batches, and preemption recomputes. Prefixes cached
  // in the request's own format have the same bits as computed ones. So this flag excludes demoted
  // prefixes only. With a lossy policy, which treats a shared prefix differently, it excludes the
  // prefix cache altogether.
  bool deterministic = false;
  std::vector<std::shared_ptr<EventSink>> sinks;  // at least one, none of them null
};

}  // namespace tessera
