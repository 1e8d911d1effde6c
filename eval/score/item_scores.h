#pragma once

#include <cstddef>
#include <vector>

#include "eval/score/ratio.h"
#include "eval/tasks/task.h"

namespace tessera {

// Mean nats per token: the logarithm of the perplexity.
Ratio surprise(const std::vector<TrialResult>& results);

// The distributions of a prompt, including that of its last token, come from before the first
// decode step. `acted`: those of decode positions that read a cache that the policy changed
// (TrialResult::acted_from).
enum class Phase : unsigned char { all, prompt, decode, acted };

// KL divergence per position, nats.
Ratio divergence(const Item& item, const std::vector<TrialResult>& results, Phase phase);

// Share of positions at which reference and subject have the same likeliest token.
Ratio agreement(const std::vector<TrialResult>& results);

// Sum over the forced tokens, in nats.
double log_likelihood(const TrialResult& result);

// Returns: index of the likeliest of an item's choices, the first of equal ones. per_byte divides
// each log likelihood by the bytes of its text, so that long choices are not at a disadvantage.
size_t likeliest_choice(const Item& item, const std::vector<TrialResult>& results, bool per_byte);

// One answer of an item: of each turn, and of each item without turns.
struct Answer {
  bool right = false;
  // Some query of the answer reads a cache that the policy changed.
  bool acted = false;
};
// Returns: the answers of an item, in the same order for every subject.
std::vector<Answer> answers_of(Scoring scoring, const Item& item,
                               const std::vector<TrialResult>& results);

// Share of right answers.
Ratio accuracy(Scoring scoring, const Item& item, const std::vector<TrialResult>& results);

// Share of the reference's right answers that are wrong here. acted_alone: only of answers that
// read a cache that the policy changed.
Ratio lost(const std::vector<Answer>& own, const std::vector<Answer>& reference, bool acted_alone);

}  // namespace tessera
