#pragma once

#include <cstddef>
#include <vector>

#include "eval/tasks/task.h"

namespace tessera {

// A mean in the making: sums of items can be added and drawn again.
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

// Nats that the tokens cost, per token: the perplexity's logarithm.
Ratio surprise(const std::vector<TrialResult>& results);

// A prompt's distributions, its last token's included, are those from before the first decode step.
enum class Phase : unsigned char { all, prompt, decode };

// KL divergence per position, nats.
Ratio divergence(const Item& item, const std::vector<TrialResult>& results, Phase phase);

// Positions at which reference and subject have the same likeliest token, per position.
Ratio agreement(const std::vector<TrialResult>& results);

// Nats; the sum over the forced tokens.
double log_likelihood(const TrialResult& result);

// The likeliest of an item's choices; per byte of its text, so that long ones have a chance, or as
// a whole. Of equals, the first.
size_t likeliest_choice(const Item& item, const std::vector<TrialResult>& results, bool per_byte);

bool is_right(Scoring scoring, const Item& item, const std::vector<TrialResult>& results);

}  // namespace tessera
