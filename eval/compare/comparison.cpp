#include "eval/compare/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "engine/distribution.h"

namespace tessera {
namespace {

double mean_of(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Returns: the largest logit minus the second largest.
double lead(std::span<const float> logits) {
  float first = -std::numeric_limits<float>::infinity();
  float second = first;
  for (const float logit : logits) {
    second = std::max(second, std::min(first, logit));
    first = std::max(first, logit);
  }
  return double{first} - double{second};
}

}  // namespace

double unit_roundoff(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return 0x1p-24;
    case WeightFormat::bf16:
      return 0x1p-8;
    case WeightFormat::f16:
      return 0x1p-11;
    case WeightFormat::int4:
      return 1.0 / 16;
    case WeightFormat::fp8:
      return 0x1p-4;
    default:  // the integers of a checkpoint are exact; activations are rounded to int8
      return 1.0 / 254;
  }
}

double unit_roundoff(KvFormat format) {
  if (format.e4m3) {
    return 0x1p-4;
  }
  const int bits = std::min<int>(format.key_bits, format.value_bits);
  return bits == 32 ? 0x1p-24 : bits == 16 ? 0x1p-11 : 0.5 / ((1 << bits) - 1);
}

double LogitBound::relative() const {
  return (2 * layers + 1) * (unit_roundoff(weights) + unit_roundoff(kv));
}

void Comparison::add(std::span<const float> reference, std::span<const float> other,
                     const LogitBound& bound) {
  TESSERA_CHECK(!reference.empty() && reference.size() == other.size(), "logits of unequal size");
  ++positions;
  divergences.push_back(static_cast<float>(kl_divergence(reference, other)));
  const double middle = mean_of(reference);
  const double other_middle = mean_of(other);
  double largest = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double centred = reference[i] - middle;
    largest = std::max(largest, std::abs(centred));
    largest_difference =
        std::max(largest_difference, std::abs(centred - (other[i] - other_middle)));
  }
  const bool same = likeliest_token(reference) == likeliest_token(other);
  const double allowed = bound.relative() * largest;
  const bool is_decided = lead(reference) > 2 * allowed;
  same_first += same ? 1 : 0;
  decided += is_decided ? 1 : 0;
  decided_differently += is_decided && !same ? 1 : 0;
  largest_bound = std::max(largest_bound, allowed);
}

double Comparison::mean_divergence() const {
  return divergences.empty() ? 0
                             : std::accumulate(divergences.begin(), divergences.end(), 0.0) /
                                   static_cast<double>(divergences.size());
}

double Comparison::divergence_at(double share) const {
  if (divergences.empty()) {
    return 0;
  }
  std::vector<float> sorted = divergences;
  std::ranges::sort(sorted);
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

}  // namespace tessera
