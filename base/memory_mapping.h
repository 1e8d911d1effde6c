#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tessera {

// Anonymous memory mapping, for memory that is large and filled slowly. It is zero, becomes
// resident as it is written, is aligned to 2 MiB, and requests huge pages.
class MemoryMapping {
 public:
  MemoryMapping() = default;
  // Errors: data() is null if the system refuses the memory. 0 bytes: maps nothing, data() is null.
  explicit MemoryMapping(int64_t bytes);
  ~MemoryMapping();
  MemoryMapping(MemoryMapping&& other) noexcept { swap(other); }
  MemoryMapping& operator=(MemoryMapping&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; }

  // Makes all of it resident now, on several threads. On a machine of several memory nodes each
  // thread takes from its own.
  // Returns: false if the system does not have the memory. Nothing is mapped: true.
  bool populate();

 private:
  void swap(MemoryMapping& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
  }

  void* mapping_ = nullptr;  // start of the mapping
  size_t mapped_bytes_ = 0;
  size_t bytes_ = 0;           // of data_
  std::byte* data_ = nullptr;  // first multiple of 2 MiB in the mapping
};

}  // namespace tessera
