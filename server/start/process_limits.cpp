#include "server/start/process_limits.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <string_view>

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

// Returns: true for a descriptor that no file has, such as an eventfd: no parent gives these.
bool is_of_library(int descriptor) {
  constexpr std::string_view kAnonymous = "anon_inode:";
  std::array<char, 64> target{};
  const std::string link = fmt::format("/proc/self/fd/{}", descriptor);
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  return length > 0 &&
         std::string_view(target.data(), static_cast<std::size_t>(length)).starts_with(kAnonymous);
}

}  // namespace

void open_standard_streams(char* const* arguments) {
  int null = ::open("/dev/null", O_RDWR);
  while (null >= 0 && null <= STDERR_FILENO) {
    null = ::open("/dev/null", O_RDWR);
  }
  bool taken = false;
  for (int stream = STDIN_FILENO; null >= 0 && stream <= STDERR_FILENO; ++stream) {
    if (is_of_library(stream)) {
      taken = ::dup2(null, stream) == stream || taken;
    }
  }
  ::close(null);
  if (taken) {
    ::execv("/proc/self/exe", arguments);
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
