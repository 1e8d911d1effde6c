#include "engine/tier/owned_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

absl::Status error_of(int code, const char* deed) {
  const std::string text = absl::StrCat("the disk does not ", deed, ": ", std::strerror(code));
  return code == ENOSPC || code == EDQUOT || code == EFBIG ? absl::ResourceExhaustedError(text)
                                                           : absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<OwnedFile> OwnedFile::open(const std::filesystem::path& path,
                                          const DiskCalls& calls) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file >= 0) {
    return OwnedFile(file, calls);
  }
  const std::string text = absl::StrCat(path.string(), ": ", std::strerror(errno));
  return errno == EACCES || errno == EPERM || errno == EROFS ? absl::PermissionDeniedError(text)
         : errno == ENOENT || errno == ENOTDIR               ? absl::NotFoundError(text)
                                                             : absl::UnavailableError(text);
}

OwnedFile::~OwnedFile() {
  if (file_ >= 0) {
    close(file_);
  }
}

int64_t OwnedFile::size() const {
  struct stat found = {};
  return fstat(file_, &found) == 0 ? found.st_size : 0;
}

absl::Status OwnedFile::write(std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = calls_->write(file_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return error_of(count < 0 ? errno : ENOSPC, "write");
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

absl::Status OwnedFile::read(std::span<std::byte> bytes, int64_t offset) const {
  while (!bytes.empty()) {
    const ssize_t count = calls_->read(file_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count == 0) {
      return absl::OutOfRangeError("the file ends too early");
    }
    if (count < 0) {
      return error_of(errno, "read");
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

void OwnedFile::truncate(int64_t size) {
  // If it fails, the rest stays and is taken for damaged when it is read.
  [[maybe_unused]] const int ignored = ftruncate(file_, size);
}

absl::Status OwnedFile::sync() {
  return calls_->sync(file_) == 0 ? absl::OkStatus() : error_of(errno, "sync");
}

void OwnedFile::touch() {
  futimens(file_, nullptr);
}

bool OwnedFile::lock() {
  return flock(file_, LOCK_EX | LOCK_NB) == 0;
}

}  // namespace tessera
