#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>

#include "server/server.h"
#include "server/start/command_line.h"
#include "server/start/process_limits.h"
#include "server/start/ranks.h"
#include "server/start/stop_signals.h"
#include "server/telemetry/log.h"

namespace {

using tessera::Communicator;

int fail(std::string_view message) {
  std::fprintf(stderr, "tessera-server: %.*s\n", static_cast<int>(message.size()), message.data());
  return EXIT_FAILURE;
}

absl::Status lead(const tessera::Settings& settings, Communicator* ranks,
                  tessera::StopSignals& signals) {
  absl::StatusOr<std::unique_ptr<tessera::Server>> server = tessera::Server::start(settings, ranks);
  if (server.ok()) {
    signals.on_hangup([&server] { (*server)->reload(); });
    signals.wait();
    (*server)->shut_down(signals);
    signals.on_hangup(nullptr);
  }
  return server.status();
}

int serve(const tessera::Settings& settings) {
  tessera::StopSignals signals;
  const absl::StatusOr<std::unique_ptr<Communicator>> joined = tessera::join_ranks(settings);
  if (!joined.ok()) {
    return fail(std::string(joined.status().message()));
  }
  Communicator* ranks = joined->get();
  const bool follows = ranks != nullptr && ranks->rank() > 0;
  tessera::start_log({.json = settings.log_json,
                      .level = settings.log_level,
                      .requests = settings.access_log,
                      .spans = settings.spans,
                      .settings = describe(settings),
                      .rank = follows ? ranks->rank() : 0});
  if (follows) {
    signals.ignore();
  }
  const absl::Status status =
      follows ? tessera::follow(settings, *ranks) : lead(settings, ranks, signals);
  if (status.ok()) {
    return EXIT_SUCCESS;
  }
  fail(std::string(status.message()));
  if (ranks != nullptr) {
    // The other ranks wait for this one, or fail in the same way. The launcher gets time to forward
    // the messages before abort().
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ranks->abort();
  }
  return EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::open_standard_streams(argv);
  try {
    const absl::StatusOr<tessera::CommandLine> command = tessera::parse_command_line(argc, argv);
    if (!command.ok()) {
      return fail(std::string(command.status().message()));
    }
    if (command->text) {
      std::fputs(command->text->c_str(), stdout);
      return EXIT_SUCCESS;
    }
    const int status = serve(command->settings);
    tessera::end_log();
    return status;
  } catch (const std::bad_alloc&) {
    return fail("not enough memory");
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      return fail(
          "no thread can be started: too little address space (ulimit -v) or too many processes "
          "(ulimit -u)");
    }
    return fail(error.what());
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
