#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tessera {

// Memory of the system's own giving, for what is large and filled slowly: zero, resident only as it
// is written, at a multiple of 2 MiB, with a wish for huge pages.
class MemoryMapping {
 public:
  MemoryMapping() = default;
  // No data() when the system refuses. 0 bytes: none are asked for, and there is no data().
  explicit MemoryMapping(int64_t bytes);
  ~MemoryMapping();
  MemoryMapping(MemoryMapping&& other) noexcept { swap(other); }
  MemoryMapping& operator=(MemoryMapping&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; }

 private:
  void swap(MemoryMapping& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(data_, other.data_);
  }

  void* mapping_ = nullptr;  // as the system gave it
  size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;  // the first multiple of 2 MiB inside
};

}  // namespace tessera
