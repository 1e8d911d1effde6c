#include "server/process_limits.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "server/http/listener.h"

namespace tessera {
namespace {

// Descriptors of the process itself: streams, event queues, listeners, files of the model.
constexpr std::size_t kOwn = 64;

constexpr std::size_t kLeastConnections = 32;

// Address space of threads that are still to be started: stacks, and arenas of the allocator.
constexpr std::size_t kThreads = 512U << 20U;

// Returns: the size of the address space that is in use.
std::size_t address_space() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

void open_standard_streams() {
  while (true) {
    const int descriptor = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (descriptor < 0) {
      return;
    }
    if (descriptor > STDERR_FILENO) {
      ::close(descriptor);
      return;
    }
  }
}

absl::StatusOr<ConnectionLimits> share_descriptors(ConnectionLimits wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t files = limit.rlim_cur;
  constexpr std::size_t kFixed = kOwn + kProbeConnections;
  if (files < kFixed + kLeastConnections) {
    return absl::FailedPreconditionError(
        fmt::format("open files: this process may have {}, it needs {} at least (ulimit -n)", files,
                    kFixed + kLeastConnections));
  }
  const std::size_t left = files - kFixed;
  if (wanted.http + wanted.grpc <= left) {
    return wanted;
  }
  ConnectionLimits shared;
  shared.grpc = std::min(wanted.grpc, std::max(left / 4, left - std::min(left, wanted.http)));
  shared.http = std::min(wanted.http, left - shared.grpc);
  spdlog::warn(
      "the limit of {} open files (ulimit -n) leaves {} HTTP connections of {}, {} for gRPC of {}",
      files, shared.http, wanted.http, shared.grpc, wanted.grpc);
  return shared;
}

absl::Status check_address_space(std::size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return absl::OkStatus();
  }
  const std::size_t used = address_space();
  const std::size_t left = limit.rlim_cur - std::min<std::size_t>(limit.rlim_cur, used);
  const std::size_t wanted = bytes + kThreads;
  if (left < wanted) {
    return absl::FailedPreconditionError(
        fmt::format("address space: {} bytes are left to this process (ulimit -v), requests and "
                    "threads need {}: see --request-memory",
                    left, wanted));
  }
  return absl::OkStatus();
}

}  // namespace tessera
