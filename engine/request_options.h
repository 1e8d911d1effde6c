#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/kv/kv_policy.h"

namespace tessera {

// The only description of a request's options: members, defaults, names and ranges. The HTTP body,
// the protobuf message, the checks and the bytes between ranks all follow visit_options().

// Sampling parameters. Defaults are those of OpenAI's API and vLLM, and so is the order in which
// the fields are applied: min_tokens, bad_words, logit_bias, penalties, DRY,
// allowed_token_ids, temperature, min_p, top_k, top_p, typical_p.
struct SamplingParams {
  struct Bias {
    int32_t token = 0;
    float value = 0;  // added to the token's logit
  };

  float temperature = 1.0f;  // 0: greedy; of equal logits the lowest id is chosen
  float top_p = 1.0f;        // the likeliest tokens that together reach this probability
  int32_t top_k = 0;         // 0: all
  // The same seed, request and weights give the same text. Sample i of a request uses seed + i.
  uint64_t seed = 0;

  float min_p = 0;  // minimum fraction of the likeliest token's probability
  // For tokens of prompt and completion, divides positive logits and multiplies others.
  float repetition_penalty = 1;
  float presence_penalty = 0;   // subtracted once if the token was generated
  float frequency_penalty = 0;  // subtracted as often as the token was generated
  std::vector<Bias> logit_bias;
  int32_t min_tokens = 0;  // stop ids and end of sequence are forbidden before this many tokens
  // Report the chosen token's log probability, and this number of the likeliest tokens.
  std::optional<int32_t> top_logprobs;
  std::optional<int32_t> prompt_logprobs;  // the same for each prompt token except the first
  // Locally typical sampling (Meister et al. 2022, section 5). Of the tokens that are left, it
  // keeps the fewest that together reach this probability. Those whose surprise is nearest to the
  // mean come first.
  float typical_p = 1;
  std::vector<int32_t> allowed_token_ids;  // no others are generated; empty: all
  // Sequences of tokens, none of them empty, that are not generated: the last token of one is
  // forbidden after the others.
  std::vector<std::vector<int32_t>> bad_words;
  // DRY (engine/dry_penalty.h), with the names and defaults of llama-server. 0: off.
  float dry_multiplier = 0;
  float dry_base = 1.75f;
  int32_t dry_allowed_length = 2;   // shortest repetition with a penalty
  int32_t dry_penalty_last_n = -1;  // tokens that are searched; -1: kMaxDryTokens
  // Tokens that no repetition contains: a bit for each of the vocabulary, as in a mask of
  // kernels/ops/sampling.h; empty: none.
  std::vector<uint32_t> dry_sequence_breakers;
};

// The options that pass from a client to the engine unchanged.
struct RequestOptions {
  SamplingParams sampling;
  std::vector<int32_t> stop_ids;  // end the sequence and are not emitted
  bool ignore_eos = false;
  int32_t priority = 0;  // lower runs first, as in vLLM; see order_of
  // The text depends only on this request, its seed and the weights, not on other requests or free
  // memory. Results never depend on chunks or batches, and preemption recomputes. Prefixes cached
  // in the request's own format have the same bits as computed ones. So this flag excludes demoted
  // prefixes only. With a lossy policy, which treats a shared prefix differently, it excludes the
  // prefix cache altogether.
  bool deterministic = false;
  // Drafts its tokens where that is faster (EngineOptions::speculation). The text is the same.
  bool speculation = true;
  // Prefixes are shared only between requests with equal salts.
  std::string cache_salt;
  struct Cache {
    bool use = true;  // match cached prefixes and insert computed ones
    // Pin the inserted path until `ttl` after its last use, even if pages run out. Ignored if the
    // pins would leave too little room.
    bool pin = false;
    std::chrono::seconds ttl{300};
    // After its end: what it alone has in the cache goes one step down the ladder, or is evicted
    // before all else.
    bool demote = false;
    bool release = false;
    // Reads what the stores have of the prompt into the cache, and ends without computing anything.
    bool prefetch = false;
  };
  Cache cache = {};
  // The coarsest format of a cached prefix that the request accepts, one of the ladder's; no value:
  // all of them. Lossy policies and deterministic requests accept their own format only.
  std::optional<KvFormat> cache_accept;
  // With a lossy policy: the share of its budget that is left at least when pages run out and
  // budgets are tightened, before any sequence is preempted (engine/kv/kv_tightening.h). 1: never
  // tightened, and so are deterministic requests. No value: EngineOptions::kv_floor.
  std::optional<float> kv_floor;
};

// Range of a number; without bounds, every finite number. NaN is outside every range.
struct OptionRange {
  double min = std::numeric_limits<float>::lowest();
  double max = std::numeric_limits<float>::max();
  bool above = false;  // `min` itself is outside

  bool contains(double value) const { return (above ? value > min : value >= min) && value <= max; }

  // Return: the range in words, for errors: "a number above 0 to 1", "an integer from 0 to 20".
  // lowest, highest: bounds of the integer's type.
  std::string numbers() const;
  std::string integers(int64_t lowest, int64_t highest) const;
};

// An option whose JSON and protobuf fields have this name and the type of the member.
struct Option {
  std::string_view name;
  OptionRange range = {};
};

// An option whose fields differ from the member. Each front end reads it by code of its own.
struct SpecialOption : Option {};

inline constexpr int32_t kMaxTopLogprobs = 20;  // OpenAI's limit
inline constexpr OptionRange kTopLogprobs{0, kMaxTopLogprobs};
inline constexpr OptionRange kTokenCount{0};  // max_tokens, min_tokens
inline constexpr OptionRange kKvFloor{0.1, 1};
inline constexpr int32_t kMaxDryTokens = 1 << 16;

// Calls `visit(option, member)` for each member. `Params` is SamplingParams, or const.
template <class Visitor, class Params>
void visit_sampling(Visitor&& visit, Params& params) {
  // A member that is missing here is a compile error.
  auto& [temperature, top_p, top_k, seed, min_p, repetition_penalty, presence_penalty,
         frequency_penalty, logit_bias, min_tokens, top_logprobs, prompt_logprobs, typical_p,
         allowed_token_ids, bad_words, dry_multiplier, dry_base, dry_allowed_length,
         dry_penalty_last_n, dry_sequence_breakers] = params;
  constexpr OptionRange kPenalty{-2, 2};  // as OpenAI
  // Above a temperature of 100, all tokens are equally likely.
  visit(Option{"temperature", {0, 100}}, temperature);
  visit(Option{"top_p", {.min = 0, .max = 1, .above = true}}, top_p);
  visit(Option{"top_k", {0}}, top_k);
  visit(SpecialOption{{"seed"}}, seed);
  visit(Option{"min_p", {0, 1}}, min_p);
  visit(Option{"repetition_penalty", {.min = 0, .above = true}}, repetition_penalty);
  visit(Option{"presence_penalty", kPenalty}, presence_penalty);
  visit(Option{"frequency_penalty", kPenalty}, frequency_penalty);
  visit(SpecialOption{{"logit_bias"}}, logit_bias);
  visit(Option{"min_tokens", kTokenCount}, min_tokens);
  visit(SpecialOption{{"top_logprobs", kTopLogprobs}}, top_logprobs);
  visit(Option{"prompt_logprobs", kTopLogprobs}, prompt_logprobs);
  visit(Option{"typical_p", {.min = 0, .max = 1, .above = true}}, typical_p);
  visit(Option{"allowed_token_ids"}, allowed_token_ids);
  visit(SpecialOption{{"bad_words"}}, bad_words);
  visit(Option{"dry_multiplier", {0, 100}}, dry_multiplier);
  visit(Option{"dry_base", {1, 100}}, dry_base);
  visit(Option{"dry_allowed_length", {0}}, dry_allowed_length);
  visit(Option{"dry_penalty_last_n", {-1, kMaxDryTokens}}, dry_penalty_last_n);
  visit(SpecialOption{{"dry_sequence_breakers"}}, dry_sequence_breakers);
}

// The same for RequestOptions and its sampling parameters.
template <class Visitor, class Options>
void visit_options(Visitor&& visit, Options& options) {
  auto& [sampling, stop_ids, ignore_eos, priority, deterministic, speculation, cache_salt, cache,
         cache_accept, kv_floor] = options;
  visit_sampling(visit, sampling);
  visit(Option{"stop_token_ids"}, stop_ids);
  visit(Option{"ignore_eos"}, ignore_eos);
  visit(Option{"priority"}, priority);
  visit(Option{"deterministic"}, deterministic);
  visit(Option{"speculation"}, speculation);
  visit(SpecialOption{{"cache_salt"}}, cache_salt);
  visit(SpecialOption{{"cache"}}, cache);
  visit(SpecialOption{{"cache_accept"}}, cache_accept);
  visit(Option{"kv_floor", kKvFloor}, kv_floor);
}

// Errors: InvalidArgument names the option, its value and its range.
absl::Status check_option(const Option& option, float value);
absl::Status check_option(const Option& option, int32_t value);

// Checks every range of visit_sampling(), and the tokens of its lists.
// Errors: InvalidArgument names the field that is out of range, with its value.
absl::Status check_sampling(const SamplingParams& params, int32_t vocab);

}  // namespace tessera
