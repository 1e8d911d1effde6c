#pragma once

#include <cstddef>
#include <vector>

#include "eval/tasks/task.h"

namespace tessera {

// A mean as a numerator and a denominator, so that items can be summed and resampled.
struct Ratio {
  double sum = 0;
  double of = 0;

  void add(const Ratio& other) {
    sum += other.sum;
    of += other.of;
  }
  Ratio times(double factor) const { return {sum * factor, of}; }
  double value() const { return sum / of; }
};

// Mean nats per token: the logarithm of the perplexity.
Ratio surprise(const std::vector<TrialResult>& results);

// The distributions of a prompt, including that of its last token, come from before the first
// decode step.
enum class Phase : unsigned char { all, prompt, decode };

// KL divergence per position, nats.
Ratio divergence(const Item& item, const std::vector<TrialResult>& results, Phase phase);

// Share of positions at which reference and subject have the same likeliest token.
Ratio agreement(const std::vector<TrialResult>& results);

// Sum over the forced tokens, in nats.
double log_likelihood(const TrialResult& result);

// Returns: index of the likeliest of an item's choices, the first of equal ones. per_byte divides
// each log likelihood by the bytes of its text, so that long choices are not at a disadvantage.
size_t likeliest_choice(const Item& item, const std::vector<TrialResult>& results, bool per_byte);

bool is_right(Scoring scoring, const Item& item, const std::vector<TrialResult>& results);

}  // namespace tessera
