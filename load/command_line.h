#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "load/run/options.h"

namespace tessera::load {

struct LoadCommand {
  LoadOptions options;
  std::optional<std::string> text;  // set: only to be printed (--help, --version)
  struct Comparison {
    std::filesystem::path a;
    std::filesystem::path b;
  };
  std::optional<Comparison> comparison;  // set: compare two reports instead
  struct Curves {
    std::vector<std::string> reports;  // "LABEL=FILE"
    std::filesystem::path html;
  };
  std::optional<Curves> curves;  // set: draw reports instead
};

// Errors: InvalidArgument with the name of the flag.
absl::StatusOr<LoadCommand> parse_load_command(int argc, const char* const* argv);

}  // namespace tessera::load
