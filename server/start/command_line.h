#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/settings/settings.h"

namespace tessera {

// Parsed command line. The process serves with `settings`, or only prints `text` (--help,
// --version, --print-config, --plan).
struct CommandLine {
  Settings settings;
  std::optional<std::string> text;
};

// Flags override the file of --config, which overrides the defaults. The last value of a repeated
// flag counts. Settings are validated unless only text is printed.
// Errors: InvalidArgument or Unimplemented, naming the flag, or the file, line and key. NotFound if
// a file cannot be read. With --plan those of print_plan().
absl::StatusOr<CommandLine> parse_command_line(int argc, const char* const* argv);

}  // namespace tessera
