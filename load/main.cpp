#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "base/status_macros.h"
#include "load/command_line.h"
#include "load/load.h"
#include "load/report/report.h"

namespace {

constexpr int kFailedChecks = 2;  // exit status; EXIT_FAILURE: the run could not be made

absl::StatusOr<int> run(int argc, char** argv) {
  using namespace tessera::load;
  TESSERA_ASSIGN_OR_RETURN(const LoadCommand command, parse_load_command(argc, argv));
  if (command.text) {
    std::fputs(command.text->c_str(), stdout);
    return EXIT_SUCCESS;
  }
  if (command.comparison) {
    TESSERA_ASSIGN_OR_RETURN(const nlohmann::json a, read_report(command.comparison->a));
    TESSERA_ASSIGN_OR_RETURN(const nlohmann::json b, read_report(command.comparison->b));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, compare_reports(a, b));
    std::fputs(text.c_str(), stdout);
    return EXIT_SUCCESS;
  }
  if (command.curves) {
    TESSERA_RETURN_IF_ERROR(draw_curves(command.curves->reports, command.curves->html));
    return EXIT_SUCCESS;
  }
  std::signal(SIGINT, [](int) { interrupted = 1; });
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::ordered_json report, run_load(command.options));
  TESSERA_RETURN_IF_ERROR(write_reports(command.options, report));
  std::fputs(print_text(report).c_str(), stdout);
  return report["failures"].empty() ? EXIT_SUCCESS : kFailedChecks;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const absl::StatusOr<int> code = run(argc, argv);
    if (code.ok()) {
      return *code;
    }
    std::fprintf(stderr, "tessera-load: %s\n", std::string(code.status().message()).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera-load: %s\n", error.what());
  }
  return EXIT_FAILURE;
}
