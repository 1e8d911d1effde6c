#pragma once

#include <cstdint>
#include <span>

namespace tessera {

// Score of one token after one position, from the model's logits.
struct TokenScore {
  float logprob = 0;       // nats
  bool likeliest = false;  // ties: the lowest id
};

// Returns: the token with the largest logit; of equal ones, the lowest id.
int32_t likeliest_token(std::span<const float> logits);

// Requires: `token` is in the vocabulary.
TokenScore score_token(std::span<const float> logits, int32_t token);

// Returns: KL(reference || other) in nats, the mean extra nats of the other model for tokens that
// the reference draws. It is 0 for equal distributions and never negative.
// Requires: equal sizes.
double kl_divergence(std::span<const float> reference, std::span<const float> other);

}  // namespace tessera
