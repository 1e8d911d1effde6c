#pragma once

#include <cstdint>
#include <span>

namespace tessera {

// Of one token after one position, by the model's logits.
struct TokenScore {
  float logprob = 0;       // nats
  bool likeliest = false;  // of equals, the lowest id
};

int32_t likeliest_token(std::span<const float> logits);

// Requires: a token of the vocabulary.
TokenScore score_token(std::span<const float> logits, int32_t token);

// KL(reference || other) in nats: how many more nats the other model needs, on average, for tokens
// that the reference draws. 0 for equal distributions, never below. Requires: equal sizes.
double kl_divergence(std::span<const float> reference, std::span<const float> other);

}  // namespace tessera
