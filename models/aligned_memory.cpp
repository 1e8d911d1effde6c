#include "models/aligned_memory.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<AlignedMemory> AlignedMemory::allocate(int64_t bytes) {
  constexpr int64_t kMost = int64_t{1} << 46;  // what an address space can hold
  void* allocated = nullptr;
  if (bytes >= 0 && bytes < kMost) {
    allocated = ::operator new (static_cast<size_t>(bytes), std::align_val_t{kMemoryAlignment},
                                std::nothrow);
  }
  if (allocated == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes"));
  }
  std::memset(allocated, 0, static_cast<size_t>(bytes));
  AlignedMemory memory;
  memory.data_.reset(static_cast<std::byte*>(allocated));
  memory.size_ = bytes;
  return memory;
}

}  // namespace tessera
