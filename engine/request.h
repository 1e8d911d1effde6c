#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

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
  uint64_t seed = 0;         // the same seed, request and weights give the same text

  float min_p = 0;  // [0, 1]: at least this fraction of the likeliest token's probability
  float repetition_penalty = 1;  // > 0: divides logits > 0, multiplies others, of tokens seen
  float presence_penalty = 0;    // [-2, 2]: subtracted for tokens generated before
  float frequency_penalty = 0;   // [-2, 2]: subtracted as often as they were generated
  std::vector<Bias> logit_bias;
  int32_t min_tokens = 0;               // no stop id and no end of sequence before that many tokens
  std::optional<int32_t> top_logprobs;  // report the token's log probability and so many likeliest
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
  cancelled,  // by the client, or because it went away
  failed,     // the engine could not go on; Finish::status says why
};

struct Finish {
  FinishReason reason = FinishReason::stop;
  absl::Status status;  // not OK only with `failed`
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;      // of the prompt, taken from the prefix cache
  int32_t completion_tokens = 0;  // as many as on_token was called
};

// Where a request's results go. Called on the engine's thread: must not block and must not call
// back into the engine, except Engine::cancel. After on_finish, which comes exactly once for every
// accepted request, nothing more is called and the engine lets go of the sink.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Before on_token, for requests with top_logprobs; valid during the call.
  virtual void on_logprobs(const TokenLogprobs& /*logprobs*/) {}
  virtual void on_token(int32_t token) = 0;
  virtual void on_finish(const Finish& finish) = 0;
};

// What a client asks of the engine: token ids, not text.
struct EngineRequest {
  std::vector<int32_t> prompt;  // not empty, each in [0, vocab)
  SamplingParams sampling;
  int32_t max_tokens = 16;        // >= 1; the context's room is a limit besides
  std::vector<int32_t> stop_ids;  // end the sequence and are not emitted
  bool ignore_eos = false;
  int32_t priority = 0;  // lower runs first, as in vLLM; see rank_of
  std::shared_ptr<EventSink> sink;
};

}  // namespace tessera
