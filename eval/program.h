#pragma once

#include "absl/status/statusor.h"

namespace tessera {

// Implements the main() of a tool. `run` is the tool, and returns its exit code. If it returns an
// error Status or throws, the message is printed to stderr after the tool's name. The exit code is
// then EXIT_FAILURE.
int run_program(const char* name, absl::StatusOr<int> (*run)(int argc, char** argv), int argc,
                char** argv);

}  // namespace tessera
