#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request.h"

namespace tessera {

struct SampleArgs {
  std::span<float> logits;  // [vocab], the model's; overwritten
  const SamplingParams& params;
  std::span<const int32_t> prompt;     // what the sequence started with
  std::span<const int32_t> generated;  // and what was chosen since
  std::span<const int32_t> stop_ids;   // not chosen before params.min_tokens
  std::optional<int32_t> forced = {};  // taken instead of a choice
};

struct Sampled {
  int32_t token = 0;
  TokenLogprobs logprobs;  // only with params.top_logprobs; valid until the next call
};

// Chooses a sequence's next token. The choice depends on the arguments alone: randomness is a
// function of the seed and the number of tokens generated, so a sequence that is preempted and
// computed anew goes on as if nothing had happened. Equal logits rank by the lower id.
//
// Time is linear in the vocabulary, also for top_k and top_p: cut-offs are found by selection, and
// nothing is sorted. Allocates only when it is made; one thread uses it.
class Sampler {
 public:
  explicit Sampler(int32_t vocab);

  // Requires: params passed check_sampling. Errors: Internal, when a logit is not finite;
  // FailedPrecondition, when min_tokens and logit_bias leave no token to choose.
  absl::StatusOr<Sampled> sample(const SampleArgs& args);

  // The log probabilities of `token` and of the `top` likeliest ones, by the model's own logits
  // after `position`; valid until the next call of either. Errors: Internal, as above.
  // logits: [vocab]
  absl::StatusOr<TokenLogprobs> logprobs(std::span<const float> logits, int32_t position,
                                         int32_t token, int32_t top);

 private:
  struct Entry {
    float logit = 0;
    int32_t token = 0;
  };
  static bool better(Entry a, Entry b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  }

  absl::StatusOr<int32_t> choose(const SampleArgs& args);
  void adjust(const SampleArgs& args);
  void penalize(const SampleArgs& args);
  Entry worst_kept(std::span<const float> logits, float max_logit, const SamplingParams& params);
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };
  double mass(Range range, float max_logit, float temperature) const;  // weights of entries_
  size_t count_reaching(double wanted, float max_logit, float temperature);
  int32_t draw(const SampleArgs& args, Entry best);
  TokenLogprobs report(std::span<const float> logits, int32_t chosen, int32_t top);

  std::vector<Entry> entries_;       // [vocab]
  std::vector<float> weights_;       // [vocab]
  std::vector<float> model_logits_;  // [vocab], for log probabilities
  std::vector<int32_t> counts_;      // [vocab], zero between calls
  std::vector<TokenLogprob> top_;    // [kMaxTopLogprobs]
};

}  // namespace tessera
