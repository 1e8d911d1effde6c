#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Sets the variables by which templates say how much a model thinks. Those that are set stay.
// `effort`: empty changes nothing.
// Requires: `variables` is an object.
// Errors: InvalidArgument, to be printed after the field's name.
absl::Status add_reasoning_effort(std::string_view effort, nlohmann::ordered_json& variables);

}  // namespace tessera
