#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "absl/status/statusor.h"
#include "base/memory_mapping.h"
#include "kernels/backend.h"

namespace tessera {

inline constexpr int64_t kMemoryAlignment = 64;  // bytes; a cache line and an AVX-512 vector

struct FreeMemory {
  const DeviceMemory* device = nullptr;
  void operator()(std::byte* memory) const {
    if (device != nullptr) {
      device->free(memory);
    } else {
      ::operator delete (memory, std::align_val_t{kMemoryAlignment});
    }
  }
};

// Owns one piece of memory for a backend's ops, aligned to kMemoryAlignment. Host memory is zero; a
// large piece becomes resident as it is written (MemoryMapping). Device memory is not initialised.
class AlignedMemory {
 public:
  AlignedMemory() = default;

  // Allocates on the host, or with backend.memory if the backend has its own memory.
  // Errors: ResourceExhausted, with the number of bytes.
  static absl::StatusOr<AlignedMemory> allocate(int64_t bytes, const Backend& backend);

  std::byte* data() const { return mapping_.data() != nullptr ? mapping_.data() : data_.get(); }
  int64_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data(), static_cast<size_t>(size_)}; }

 private:
  std::unique_ptr<std::byte, FreeMemory> data_;
  MemoryMapping mapping_;  // in place of data_
  int64_t size_ = 0;
};

// Copies host data to memory that the backend's ops read. Meant for initialisation at start.
// Requires: `to` has room for from.size() elements.
void put(const Backend& backend, std::span<const std::byte> from, std::byte* to);
template <class T>
void put(const Backend& backend, std::span<const T> from, T* to) {
  put(backend, std::as_bytes(from), reinterpret_cast<std::byte*>(to));
}

// Cuts one piece of memory into aligned parts. The caller makes the same sequence of calls twice.
// With a null base the calls only measure, and views have null data. With a base they cut. The base
// is not owned.
class MemoryCutter {
 public:
  explicit MemoryCutter(std::byte* base = nullptr) : base_(base) {}

  std::byte* bytes(int64_t count) {
    std::byte* part = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(count, kMemoryAlignment);
    return part;
  }

  template <class T>
  std::span<T> array(int64_t count) {
    T* part = reinterpret_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))));
    return {part, part == nullptr ? 0 : static_cast<size_t>(count)};
  }

  // Returns: [rows, cols]; rows are padded so that each one begins aligned.
  template <class T>
  MatrixView<T> matrix(int64_t rows, int64_t cols) {
    const int64_t stride = round_up(cols, kMemoryAlignment / static_cast<int64_t>(sizeof(T)));
    return {array<T>(rows * stride).data(), rows, cols, stride};
  }

  int64_t used() const { return used_; }  // bytes, padding included

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace tessera
