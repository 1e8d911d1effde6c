#include "server/telemetry/log_stream.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <string>
#include <utility>

namespace tessera {
namespace {

// Interval at which a thread that waits for the reader looks whether the server ends.
constexpr std::chrono::milliseconds kLook{100};

}  // namespace

// A stream that fails, for example because its reader has gone, takes bytes: the write fails.
bool LogStream::takes_bytes(std::chrono::milliseconds patience) const {
  pollfd polled{.fd = descriptor_, .events = POLLOUT, .revents = 0};
  return poll(&polled, 1, hurried_ ? 0 : static_cast<int>(patience.count())) > 0;
}

// Requires: takes_bytes(). A pipe takes so many bytes without waiting then.
// Returns: false if the line is lost.
bool LogStream::write_part(std::string_view part) const {
  ssize_t written = -1;
  do {
    written = ::write(descriptor_, part.data(), part.size());
  } while (written < 0 && errno == EINTR);
  return std::cmp_equal(written, part.size());
}

void LogStream::write(std::string_view line) {
  const std::lock_guard lock(mutex_);
  const std::string whole = fmt::format("{}{}", cut_ ? "\n" : "", line);
  std::string_view rest = whole;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, PIPE_BUF);
    if (!takes_bytes(stuck_ ? std::chrono::milliseconds(0) : patience_) || !write_part(part)) {
      stuck_ = true;
      ++dropped_;
      return;
    }
    rest.remove_prefix(part.size());
    cut_ = !rest.empty();
  }
  stuck_ = false;
}

bool LogStream::wait_for_reader() const {
  while (!hurried_) {
    if (takes_bytes(kLook)) {
      return true;
    }
  }
  return false;
}

int64_t LogStream::take_dropped() {
  const std::lock_guard lock(mutex_);
  return takes_bytes(std::chrono::milliseconds(0)) ? std::exchange(dropped_, 0) : 0;
}

}  // namespace tessera
