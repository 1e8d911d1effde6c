#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/kv_format.h"
#include "kernels/weight.h"

namespace tessera {

// How far apart two computations of the same logits may be by the formats they round to. A model of
// rounding, not a theorem: as if each of a model's 2 * layers + 1 products that the residual stream
// meets were off by one rounding of the coarser weights' activations and one of the pages, relative
// to the largest logit, all in one direction. So a first token whose lead is twice that can have
// changed by a bug alone.
struct LogitBound {
  WeightFormat weights = WeightFormat::f32;  // the coarser of the two
  KvFormat kv = kKvF16;
  int32_t layers = 0;

  // Relative to the largest logit.
  double relative() const;
};

// What one way to compute a model says of tokens, beside another.
struct Comparison {
  int64_t positions = 0;
  std::vector<float> divergences;  // KL in nats, of each position
  int64_t same_first = 0;          // positions whose likeliest token is the same
  int64_t decided = 0;  // whose first token leads by more than the bound, in the reference
  int64_t decided_differently = 0;  // of these, those where the other finds another one
  double largest_difference = 0;    // of logits, both taken from their mean
  double largest_bound = 0;         // of the positions' bounds

  // Another position. Requires: logits of one vocabulary.
  void add(std::span<const float> reference, std::span<const float> other, const LogitBound& bound);
  double mean_divergence() const;
  double divergence_at(double share) const;  // a quantile; 1: the largest
};

// How coarse a format rounds what goes into a product: half of its last bit, relative to the
// largest.
double unit_roundoff(WeightFormat format);
double unit_roundoff(KvFormat format);

}  // namespace tessera
