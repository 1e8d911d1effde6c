#include "eval/program.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>

namespace tessera {
namespace {

int fail(const char* name, const std::string& message) {
  std::fprintf(stderr, "%s: %s\n", name, message.c_str());
  return EXIT_FAILURE;
}

}  // namespace

int run_program(const char* name, absl::StatusOr<int> (*run)(int argc, char** argv), int argc,
                char** argv) {
  try {
    const absl::StatusOr<int> code = run(argc, argv);
    return code.ok() ? *code : fail(name, std::string(code.status().message()));
  } catch (const std::bad_alloc&) {
    return fail(name, "not enough memory");
  } catch (const std::exception& error) {
    return fail(name, error.what());
  }
}

}  // namespace tessera
