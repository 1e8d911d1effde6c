#include "kernels/memory_mapping.h"

#include <sys/mman.h>

namespace tessera {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

MemoryMapping::MemoryMapping(int64_t bytes) {
  if (bytes <= 0) {
    return;
  }
  const size_t mapped = static_cast<size_t>(bytes) + kHugePage;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return;
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(mapping);
  mapping_ = mapping;
  mapped_bytes_ = mapped;
  data_ = static_cast<std::byte*>(mapping) + (kHugePage - start % kHugePage) % kHugePage;
  madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // optional: slower without
}

MemoryMapping::~MemoryMapping() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapped_bytes_);
  }
}

}  // namespace tessera
