#include "server/base/configuration_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"

namespace tessera {

absl::StatusOr<std::string> read_configuration_file(const std::filesystem::path& path,
                                                    std::size_t max_bytes) {
  const auto unreadable = [&path] {
    return absl::NotFoundError(
        fmt::format("{} cannot be read: {}", path.string(), std::strerror(errno)));
  };
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    return unreadable();
  }
  const absl::Cleanup close_file = [file] { ::close(file); };
  struct stat state {};
  if (::fstat(file, &state) != 0) {
    return unreadable();
  }
  if (!S_ISREG(state.st_mode)) {
    return absl::NotFoundError(
        fmt::format("{} cannot be read: it is not a regular file", path.string()));
  }
  // Files of /proc say that they have no bytes, and others may grow.
  std::string text(max_bytes + 1, '\0');
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t got = ::read(file, text.data() + bytes, text.size() - bytes);
    if (got < 0 && errno != EINTR) {
      return unreadable();
    }
    if (got == 0) {
      text.resize(bytes);
      text.shrink_to_fit();
      return text;
    }
    bytes += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return absl::InvalidArgumentError(
      fmt::format("{} has more than {} bytes, the most that are read", path.string(), max_bytes));
}

}  // namespace tessera
