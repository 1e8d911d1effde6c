#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// Makes a `pattern` of a JSON schema (ECMA-262) ready for the grammar compiler, which takes \s for
// the white space of ASCII alone. So \S, and a class that leaves out \s, would accept the others.
// Returns: a pattern whose grammar accepts no text that the given one does not match.
// Errors: InvalidArgument for a class that contains \S.
absl::StatusOr<std::string> prepare_pattern(std::string_view pattern);

}  // namespace tessera
