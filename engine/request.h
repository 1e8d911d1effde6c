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
#include "kernels/kv_policy.h"

namespace tessera {

using RequestId = uint64_t;

// How the next token is chosen. Defaults are the ecosystem's (OpenAI's API, vLLM), and so is the
// order in which the fields act: min_tokens, logit_bias, penalties, temperature, min_p, top_k,
// top_p.
struct SamplingParams {
  struct Bias {
    int32_t token = 0;
    float value = 0;  // added to the token's logit
  };

  float temperature = 1.0f;  // 0: greedy; ties go to the lowest id
  float top_p = 1.0f;        // (0, 1]: the likeliest tokens that together reach this probability
  int32_t top_k = 0;         // 0: all
  uint64_t seed = 0;         // the same seed, request and weights give the same text;
                             // of a request with several samples, sample i has seed + i

  float min_p = 0;  // [0, 1]: at least this fraction of the likeliest token's probability
  float repetition_penalty = 1;  // > 0: divides logits > 0, multiplies others, of tokens seen
  float presence_penalty = 0;    // [-2, 2]: subtracted for tokens generated before
  float frequency_penalty = 0;   // [-2, 2]: subtracted as often as they were generated
  std::vector<Bias> logit_bias;
  int32_t min_tokens = 0;               // no stop id and no end of sequence before that many tokens
  std::optional<int32_t> top_logprobs;  // report the token's log probability and so many likeliest
  std::optional<int32_t> prompt_logprobs;  // the same for each token of the prompt but the first
};

inline constexpr int32_t kMaxTopLogprobs = 20;  // OpenAI's limit

// InvalidArgument names the field that is out of range, with its value.
absl::Status check_sampling(const SamplingParams& params, int32_t vocab);

// Log probabilities by the model's own logits, before bias, penalties and temperature.
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
  cancelled,  // by the client, because it went away, or because the request's deadline has passed
  failed,     // the engine could not go on; Finish::status says why
};

struct Finish {
  FinishReason reason = FinishReason::stop;
  absl::Status status;  // not OK with `failed`, and DeadlineExceeded with a `cancelled` by deadline
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;      // of the prompt, taken from the prefix cache
  int32_t completion_tokens = 0;  // as many as on_token was called
  // By EngineOptions::clock: from submission to its first slot, and from there to its first token.
  // None: it did not come so far.
  std::optional<std::chrono::duration<double>> queue_time = {};
  std::optional<std::chrono::duration<double>> prefill_time = {};

  struct Kv {
    KvPreset preset;  // as in effect
    KvUsage usage;    // at the end; of one that is cancelled while it waits, what it had
  };
  Kv kv = {};
};

// Where the results of one sample of a request go. Called on the engine's thread: must not block
// and must not call back into the engine, except Engine::cancel. After on_finish, which comes
// exactly once for every sample of an accepted request, nothing more is called and the engine lets
// go of the sink.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // For requests with prompt_logprobs: once for each token of the prompt but the first, in order
  // and before the first on_token; valid during the call.
  virtual void on_prompt_logprobs(const TokenLogprobs& /*logprobs*/) {}
  // For requests with observe_logits: the model's own logits after the token at `position`, once
  // for each position in ascending order, before the on_token of the token that follows; valid
  // during the call. A sequence's last token is not computed, so nothing follows from it, unless it
  // is the prompt's (max_tokens 0).
  virtual void on_logits(int32_t /*position*/, std::span<const float> /*logits*/) {}
  // Before on_token, for requests with top_logprobs; valid during the call.
  virtual void on_logprobs(const TokenLogprobs& /*logprobs*/) {}
  virtual void on_token(int32_t token) = 0;
  virtual void on_finish(const Finish& finish) = 0;
};

// What a client asks of the engine: token ids, not text. Each sink gets a sample of its own: a
// sequence that runs, ends and is cancelled by itself (see Engine::submit for its id). All samples
// get every event, the prompt's included, but the prompt is computed once and its pages are shared,
// as long as one of them still runs when the others find room.
struct EngineRequest {
  std::vector<int32_t> prompt;  // not empty, each in [0, vocab)
  SamplingParams sampling;
  int32_t max_tokens = 16;        // >= 0; the context's room is a limit besides. 0: prefill only
  std::vector<int32_t> stop_ids;  // end the sequence and are not emitted
  bool ignore_eos = false;
  int32_t priority = 0;  // lower runs first, as in vLLM; see rank_of
  // Teacher forcing, for evaluation: these tokens are taken, whatever the sampler would choose, one
  // a step as if the model had generated them. The sequence ends after the last one with `length`;
  // max_tokens and stop ids do not matter to it. Prompt and forced tokens must fit the context.
  std::vector<int32_t> forced;
  bool observe_logits = false;  // the sink gets on_logits
  // How its keys and values are kept; none: as EngineOptions::kv says. The name is kept as it is.
  std::optional<KvPreset> kv;
  // What others store under another salt is never taken, and nobody else takes what is stored under
  // this one.
  std::string cache_salt;
  struct Cache {
    bool use = true;  // take what is there, leave what is computed
    bool pin =
        false;  // what it leaves stays for `ttl`, whatever else needs room, as far as there is some
    std::chrono::seconds ttl{300};
  };
  Cache cache = {};
  // The coarsest format of a beginning that it takes, of those to which the cache demotes; none:
  // all of these. Lossy policies and deterministic requests take what is in their own format only.
  std::optional<KvFormat> cache_accept;
  // When to give up: the request, waiting or running, ends with `cancelled` and DeadlineExceeded
  // within one step of that time, by EngineOptions::clock.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  // The text shall depend on this request, its seed and the weights alone, whatever else runs and
  // however little memory there is. Results do not depend on chunks or batches, preemption
  // recomputes, and what the prefix cache holds in the request's own format has the bits that
  // computing it would give. So this leaves demoted prefixes out and, of lossy policies, which
  // treat a prefix that others share differently, the prefix cache.
  bool deterministic = false;
  std::vector<std::shared_ptr<EventSink>> sinks;  // at least one, none of them null
};

}  // namespace tessera
