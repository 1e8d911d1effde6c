#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace tessera {

class Service;

// Checks the model that a request names.
// Errors: NotFound, as OpenAI reports it. An empty name is the served model.
absl::Status check_model(const Service& service, std::string_view asked);

}  // namespace tessera
