#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tier/disk_calls.h"

namespace tessera {

// An open file that only its owner may read and write (mode 0600).
class OwnedFile {
 public:
  // Opens a file, and creates it if there is none.
  // Errors: PermissionDenied, NotFound, Unavailable; each names the file.
  static absl::StatusOr<OwnedFile> open(const std::filesystem::path& path, const DiskCalls& calls);
  OwnedFile(OwnedFile&& other) noexcept
      : file_(std::exchange(other.file_, -1)), calls_(other.calls_) {}
  OwnedFile& operator=(OwnedFile&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(calls_, other.calls_);
    return *this;
  }
  ~OwnedFile();

  int64_t size() const;
  // Errors: ResourceExhausted (no space on the disk), Unavailable. A part may have been written.
  absl::Status write(std::span<const std::byte> bytes, int64_t offset);
  // Errors: OutOfRange (the file ends before), Unavailable.
  absl::Status read(std::span<std::byte> bytes, int64_t offset) const;
  void truncate(int64_t size);
  absl::Status sync();
  void touch();  // sets its time of modification to now
  // Returns: false if another process has locked it.
  bool lock();

 private:
  OwnedFile(int file, const DiskCalls& calls) : file_(file), calls_(&calls) {}

  int file_;
  const DiskCalls* calls_;
};

}  // namespace tessera
