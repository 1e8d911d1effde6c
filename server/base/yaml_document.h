#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "yaml-cpp/yaml.h"

namespace tessera {

// Parses a text of one YAML document. Empty documents after it, as templates leave them, are
// passed over.
// Returns: its root; null for an empty text.
// Errors: InvalidArgument with `file` and the line where a second document has contents. It would
// be ignored silently. Throws YAML::Exception if the text is no YAML.
absl::StatusOr<YAML::Node> load_yaml_document(std::string_view yaml, std::string_view file);

}  // namespace tessera
