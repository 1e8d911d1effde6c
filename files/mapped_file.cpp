#include "files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// A page fault maps 64 KiB around it and, from Linux 6.18 on, all of the page cache's folio: up to
// 2 MiB, aligned in the file. Pages of parts that were dropped before come back in this way.
constexpr ptrdiff_t kFolio = ptrdiff_t{2} << 20;

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) {
      ::close(value_);
    }
  }
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

absl::StatusOr<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.value() < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path.string(), ": cannot be opened"));
  }
  struct stat status {};
  if (::fstat(file.value(), &status) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path.string(), ": cannot be examined"));
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": is not a regular file"));
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) {
    return MappedFile({});
  }
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value(), 0);
  if (mapped == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path.string(), ": cannot be mapped"));
  }
  return MappedFile({static_cast<const std::byte*>(mapped), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

void MappedFile::drop_pages(std::span<const std::byte> part) const {
  constexpr ptrdiff_t kFaultAround = 65536;
  const ptrdiff_t first = part.data() - bytes_.data();
  const ptrdiff_t begin = std::max<ptrdiff_t>(first / kFolio * kFolio - kFaultAround, 0);
  const ptrdiff_t end = std::min(
      (first + std::ssize(part) + kFolio - 1) / kFolio * kFolio + kFaultAround, std::ssize(bytes_));
  if (begin < end) {
    std::byte* pages = const_cast<std::byte*>(bytes_.data()) + begin;
    ::madvise(pages, static_cast<size_t>(end - begin), MADV_DONTNEED);  // a hint: may fail
  }
}

void MappedFile::drop_passed_pages(std::span<const std::byte> part) const {
  const ptrdiff_t first = part.data() - bytes_.data();
  if (first / kFolio != (first + std::ssize(part)) / kFolio) drop_pages(part);
}

absl::StatusOr<std::string> read_small_file(const std::filesystem::path& path) {
  constexpr size_t kMax = size_t{64} << 20;
  TESSERA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  if (file.bytes().size() > kMax) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": has ", file.bytes().size(),
                                                   " bytes, expected at most ", kMax));
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace tessera
