#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/status_macros.h"
#include "eval/command_line.h"
#include "eval/eval.h"
#include "eval/lab/method.h"
#include "eval/profiling.h"
#include "eval/program.h"
#include "eval/report/writers.h"

namespace {

absl::StatusOr<int> run(int argc, char** argv) {
  TESSERA_ASSIGN_OR_RETURN(const tessera::EvalCommand command,
                           tessera::parse_eval_command(argc, argv));
  if (command.text) {
    std::fputs(command.text->c_str(), stdout);
    return EXIT_SUCCESS;
  }
  if (command.lists_methods) {
    std::fputs(tessera::lab::describe_methods().c_str(), stdout);
    return EXIT_SUCCESS;
  }
  if (command.options.profile) {
    TESSERA_ASSIGN_OR_RETURN(const std::string table, tessera::run_profiling(command.options));
    std::fputs(table.c_str(), stdout);
    return EXIT_SUCCESS;
  }
  TESSERA_ASSIGN_OR_RETURN(const tessera::Report report, tessera::run_eval(command.options));
  std::fputs(tessera::print_table(report).c_str(), stdout);
  TESSERA_RETURN_IF_ERROR(tessera::write_reports(command.options, report));
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::run_program("tessera-eval", run, argc, argv);
}
