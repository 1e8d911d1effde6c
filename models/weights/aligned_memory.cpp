#include "models/weights/aligned_memory.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// A mapping rounds up to huge pages.
constexpr int64_t kLeastMapping = int64_t{8} << 20;

}  // namespace

absl::StatusOr<AlignedMemory> AlignedMemory::allocate(int64_t bytes, const Backend& backend) {
  constexpr int64_t kMax = int64_t{1} << 46;  // limit of an address space
  AlignedMemory memory;
  memory.size_ = bytes;
  if (backend.memory == nullptr && bytes >= kLeastMapping && bytes < kMax) {
    memory.mapping_ = MemoryMapping(bytes);
    if (memory.mapping_.data() != nullptr) return memory;
  }
  void* allocated = nullptr;
  if (backend.memory != nullptr) {
    allocated = backend.memory->allocate(bytes);
  } else if (bytes >= 0 && bytes < kMax) {
    allocated = ::operator new (static_cast<size_t>(bytes), std::align_val_t{kMemoryAlignment},
                                std::nothrow);
  }
  if (allocated == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes"));
  }
  if (backend.memory == nullptr) {
    std::memset(allocated, 0, static_cast<size_t>(bytes));
  }
  memory.data_ = {static_cast<std::byte*>(allocated), FreeMemory{backend.memory}};
  return memory;
}

void put(const Backend& backend, std::span<const std::byte> from, std::byte* to) {
  if (backend.memory != nullptr) {
    backend.memory->upload(to, from.data(), std::ssize(from));
  } else if (!from.empty()) {
    std::memcpy(to, from.data(), from.size());
  }
}

}  // namespace tessera
