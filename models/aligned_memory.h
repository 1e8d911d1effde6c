#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/view.h"

namespace tessera {

inline constexpr int64_t kMemoryAlignment = 64;  // bytes; a cache line and an AVX-512 vector

// Zeroed memory that begins at a multiple of kMemoryAlignment.
class AlignedMemory {
 public:
  AlignedMemory() = default;

  // Errors: ResourceExhausted, with the number of bytes.
  static absl::StatusOr<AlignedMemory> allocate(int64_t bytes);

  std::byte* data() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete (memory, std::align_val_t{kMemoryAlignment});
    }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t size_ = 0;
};

// Cuts one piece of memory into aligned parts. The same sequence of calls serves twice: on no
// memory it measures how much is needed (views come out with null data), then it cuts.
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

  // Rows are padded so that each begins aligned.
  template <class T>
  MatrixView<T> matrix(int64_t rows, int64_t cols) {
    const int64_t stride = round_up(cols, kMemoryAlignment / static_cast<int64_t>(sizeof(T)));
    return {array<T>(rows * stride).data(), rows, cols, stride};
  }

  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace tessera
