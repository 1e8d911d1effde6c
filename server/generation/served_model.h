#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

class Service;

// Checks the model that a request names: by its name, by an alias, by that of an adapter, or with
// the alias "*" by any name of at most kMaxModelName bytes.
// Errors: NotFound, as OpenAI reports it. An empty name is the served model.
absl::Status check_model(const Service& service, std::string_view asked);

// Returns: the name of the model in the answer to a request: the one that it asked by.
// Requires: check_model() is OK.
const std::string& answered_name(const Service& service, const std::string& asked);

}  // namespace tessera
