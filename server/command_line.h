#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/settings.h"

namespace tessera {

// What a command line asks for: to serve with `settings`, or only to print `text`
// (--help, --version, --print-config).
struct CommandLine {
  Settings settings;
  std::optional<std::string> text;
};

// Flags (the last, if one is given twice) win over the file of --config, which wins over the
// defaults; what will be served is validated. Errors: InvalidArgument or Unimplemented that name
// the flag, or the file, line and key; NotFound for a file that is not there.
absl::StatusOr<CommandLine> parse_command_line(int argc, const char* const* argv);

}  // namespace tessera
