#pragma once

#include "absl/status/statusor.h"

namespace tessera {

// The main() of a tool. `run` is the tool, and returns its exit code. A Status or an exception that
// it ends with instead is told on stderr, after the tool's name, and fails.
int run_program(const char* name, absl::StatusOr<int> (*run)(int argc, char** argv), int argc,
                char** argv);

}  // namespace tessera
