#pragma once

#include <span>
#include <string_view>

namespace tessera {

struct Explanation {
  std::string_view name;
  std::string_view meaning;  // one sentence
};

// What every number of a report means. eval/README.md says the same.
std::span<const Explanation> explanations();

// Of one metric. Requires: it has one.
std::string_view explain_metric(std::string_view name);

}  // namespace tessera
