#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "eval/run/subject.h"

namespace tessera {

// Writes the result of a trial with turns from the distributions before its forced tokens.
class TurnNotes {
 public:
  // Requires: `job` and what it refers to outlive this; its turns are the forced tokens.
  explicit TurnNotes(const Job& job);

  // logits: the distribution of forced token `place`.
  // Requires: called in order of `place`; 0 only if no question precedes it.
  void note(size_t place, std::span<const float> logits);

 private:
  const Job& job_;
  std::vector<bool> answered_;  // [forced]
};

}  // namespace tessera
