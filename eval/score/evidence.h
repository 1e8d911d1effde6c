#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "eval/run/evaluation.h"
#include "eval/score/verdict.h"
#include "eval/tasks/task.h"

namespace tessera {

// Answers count only where the reference answers this share of them: a preset cannot lose an answer
// that the reference does not have.
inline constexpr double kQualifyingShare = 0.8;
// Answers of contexts with this number of tokens or more do not count. Small models answer few
// questions there, so the divergence decides.
inline constexpr size_t kAnswersDecideBelow = 3072;

// Accuracy of the reference at one length of a task.
struct Qualification {
  int32_t length = 0;  // Item::length
  double accuracy = 0;
  bool counts = false;
};

// Returns: one entry for each length, ascending; empty for a task without answers.
std::vector<Qualification> qualify(const Task& task, const TaskResults& results);

// Returns: the evidence of each item (one context, with all its questions) about a subject.
// Requires: subject > 0, since 0 is the reference.
std::vector<ContextEvidence> evidence_of(const Task& task, const TaskResults& results,
                                         size_t subject);

}  // namespace tessera
