#include <cstdio>
#include <cstdlib>
#include <exception>

#include "server/command_line.h"
#include "server/log.h"
#include "server/server.h"
#include "server/stop_signals.h"

namespace {

absl::Status serve(const tessera::Settings& settings) {
  tessera::StopSignals signals;
  tessera::start_log(settings);
  absl::StatusOr<std::unique_ptr<tessera::Server>> server = tessera::Server::start(settings);
  if (server.ok()) {
    signals.wait();
    (*server)->shut_down(signals);
  }
  return server.status();
}

int fail(std::string_view message) {
  std::fprintf(stderr, "tessera-server: %.*s\n", static_cast<int>(message.size()), message.data());
  return EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const absl::StatusOr<tessera::CommandLine> command = tessera::parse_command_line(argc, argv);
    if (!command.ok()) {
      return fail(std::string(command.status().message()));
    }
    if (command->text) {
      std::fputs(command->text->c_str(), stdout);
      return EXIT_SUCCESS;
    }
    const absl::Status status = serve(command->settings);
    return status.ok() ? EXIT_SUCCESS : fail(std::string(status.message()));
  } catch (const std::bad_alloc&) {
    return fail("not enough memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
