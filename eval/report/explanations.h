#pragma once

#include <span>
#include <string_view>

namespace tessera {

struct Explanation {
  std::string_view name;
  std::string_view meaning;  // one sentence
};

// Returns: the meaning of every number of a report. docs/howto/evaluate.md has the same
// explanations.
std::span<const Explanation> explanations();

// Returns: the meaning of one metric.
// Requires: explanations() has an entry of this name.
std::string_view explain_metric(std::string_view name);

}  // namespace tessera
