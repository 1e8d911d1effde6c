#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct NamedAdapter {
  std::string name;
  std::filesystem::path path;
};

// Returns: the adapters of "NAME=PATH,...".
// Errors: InvalidArgument for an entry without a name or a path, or a name that stands there twice.
absl::StatusOr<std::vector<NamedAdapter>> parse_adapters(std::string_view text);

}  // namespace tessera
