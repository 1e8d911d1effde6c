#include "models/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/status_macros.h"

namespace tessera {
namespace {

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
  constexpr uintptr_t kFaultAround = 65536;  // bytes that Linux maps around a page fault
  const auto address = [](const std::byte* at) { return reinterpret_cast<uintptr_t>(at); };
  const uintptr_t begin =
      std::max(address(part.data()) / kFaultAround * kFaultAround, address(bytes_.data()));
  const uintptr_t end = std::min(
      (address(part.data()) + part.size() + kFaultAround - 1) / kFaultAround * kFaultAround,
      address(bytes_.data()) + bytes_.size());
  if (begin < end) {
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // a hint: may fail
  }
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
