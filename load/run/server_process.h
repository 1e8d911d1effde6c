#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::load {

// A signal that a run sends to the server's process.
struct PlannedSignal {
  int number = 0;   // SIGTERM or SIGKILL
  double time = 0;  // seconds after the start of the run

  // Parses "TERM@5,KILL@20".
  // Returns: by ascending time.
  // Errors: InvalidArgument.
  static absl::StatusOr<std::vector<PlannedSignal>> parse(const std::string& text);
};

// Returns: "TERM" or "KILL".
std::string signal_name(int number);

// One process, also after its number was given to another one.
struct ProcessId {
  pid_t number = 0;
  uint64_t start = 0;  // clock ticks after the start of the machine
};

// The process of the server, on this machine.
class ServerProcess {
 public:
  // `place` is a process number, or a file that holds it. The file is read before each use, because
  // a supervisor writes it again when it starts the server again.
  explicit ServerProcess(std::string place) : place_(std::move(place)) {}

  // Errors: NotFound if there is no such process.
  absl::StatusOr<ProcessId> id() const;

  // Returns: bytes of resident memory. Nothing: there is no such process now.
  std::optional<double> resident_bytes() const;

  // Returns: the process that the signal was sent to.
  // Errors: NotFound, PermissionDenied.
  absl::StatusOr<ProcessId> send(int signal) const;

 private:
  std::string place_;
};

// Returns: false if the process has ended, also if its parent has not waited for it yet.
bool is_running(const ProcessId& process);

}  // namespace tessera::load
