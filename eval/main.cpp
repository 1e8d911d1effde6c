#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "eval/command_line.h"
#include "eval/eval.h"
#include "eval/report/writers.h"
#include "models/status_macros.h"

namespace {

absl::Status run(int argc, char** argv) {
  TESSERA_ASSIGN_OR_RETURN(const tessera::EvalCommand command,
                           tessera::parse_eval_command(argc, argv));
  if (command.text) {
    std::fputs(command.text->c_str(), stdout);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const tessera::Report report, tessera::run_eval(command.options));
  std::fputs(tessera::print_table(report).c_str(), stdout);
  return tessera::write_reports(command.options, report);
}

int fail(const std::string& message) {
  std::fprintf(stderr, "tessera-eval: %s\n", message.c_str());
  return EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const absl::Status status = run(argc, argv);
    return status.ok() ? EXIT_SUCCESS : fail(std::string(status.message()));
  } catch (const std::bad_alloc&) {
    return fail("not enough memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
