#include "server/chat/template_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tessera {

absl::Status add_reasoning_effort(std::string_view effort, nlohmann::ordered_json& variables) {
  if (effort.empty()) {
    return absl::OkStatus();
  }
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
  if (std::find(std::begin(kEfforts), std::end(kEfforts), effort) == std::end(kEfforts)) {
    return absl::InvalidArgumentError(fmt::format("must be one of {}", fmt::join(kEfforts, ", ")));
  }
  variables.emplace("reasoning_effort", effort);
  if (effort == "none") {
    variables.emplace("enable_thinking", false);
  }
  return absl::OkStatus();
}

}  // namespace tessera
