#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/kv/kv_format.h"
#include "kernels/matrix/weight.h"

namespace tessera {

// Bound on the difference between two computations of the same logits, from the formats that they
// round to. It is a model of rounding, not a theorem. Each of a model's 2 * layers + 1 products on
// the residual stream is assumed to be off by two roundings. One is a rounding of the coarser
// weights' activations, the other one of the pages. Both are relative to the largest logit, and all
// are in one direction. A first token that leads by more than twice the bound can thus change only
// because of a bug.
struct LogitBound {
  WeightFormat weights = WeightFormat::f32;  // coarser of the two
  KvFormat kv = kKvF16;
  int32_t layers = 0;

  // Returns: the bound, relative to the largest logit.
  double relative() const;
};

// Comparison of one computation of a model with a reference, position by position.
struct Comparison {
  int64_t positions = 0;
  std::vector<float> divergences;   // KL divergence of each position, nats
  int64_t same_first = 0;           // positions with the same likeliest token
  int64_t decided = 0;              // positions where the reference's lead exceeds twice the bound
  int64_t decided_differently = 0;  // decided positions with another first token
  double largest_difference = 0;    // difference of logits, each minus their mean
  double largest_bound = 0;         // bounds of all positions

  // Adds one position.
  // Requires: both are logits [vocab] over the same vocabulary.
  void add(std::span<const float> reference, std::span<const float> other, const LogitBound& bound);
  double mean_divergence() const;
  double divergence_at(double share) const;  // quantile of `divergences`; 1: the largest
};

// Returns: rounding error of a format for the operands of a product: half of its last bit, relative
// to the largest.
double unit_roundoff(WeightFormat format);
double unit_roundoff(KvFormat format);

}  // namespace tessera
