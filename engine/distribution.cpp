#include "engine/distribution.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace tessera {
namespace {

double log_sum_exp(std::span<const float> logits, float max) {
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - max);
  }
  return max + std::log(sum);
}

}  // namespace

int32_t likeliest_token(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TokenScore score_token(std::span<const float> logits, int32_t token) {
  const auto at = static_cast<size_t>(token);
  TESSERA_CHECK(at < logits.size(), "the token is one of the vocabulary");
  const int32_t best = likeliest_token(logits);
  const double sum = log_sum_exp(logits, logits[static_cast<size_t>(best)]);
  return {static_cast<float>(logits[at] - sum), best == token};
}

double kl_divergence(std::span<const float> reference, std::span<const float> other) {
  TESSERA_CHECK(reference.size() == other.size(), "distributions over one vocabulary");
  const double reference_max = *std::max_element(reference.begin(), reference.end());
  const double other_max = *std::max_element(other.begin(), other.end());
  double reference_sum = 0;
  double other_sum = 0;
  double lead = 0;  // weighted lead of the reference's logits over the other's
  for (size_t i = 0; i < reference.size(); ++i) {
    const double r = reference[i] - reference_max;
    const double o = other[i] - other_max;
    const double weight = std::exp(r);
    reference_sum += weight;
    other_sum += std::exp(o);
    lead += weight * (r - o);
  }
  return std::max(0.0, lead / reference_sum - std::log(reference_sum) + std::log(other_sum));
}

}  // namespace tessera
