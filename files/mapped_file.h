#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// Owns a read-only mapping of a file. To replace a checkpoint, write new files and rename them.
// Shrinking a mapped file in place kills the process that reads it.
class MappedFile {
 public:
  // Errors: NotFound, PermissionDenied; InvalidArgument if it is not a regular file.
  static absl::StatusOr<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

  // Lets go of the pages with some of the file's bytes, and of those that a page fault maps beside
  // them. They no longer count as memory of the process, and are read again if they are used again.
  void drop_pages(std::span<const std::byte> part) const;

  // The same for a reader of neighbouring parts: does nothing until a part passes a border of the
  // pages that a fault maps at once. The last parts need drop_pages().
  void drop_passed_pages(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

// Returns: the contents of a small text file.
// Errors: as MappedFile::open; InvalidArgument above 64 MiB.
absl::StatusOr<std::string> read_small_file(const std::filesystem::path& path);

}  // namespace tessera
