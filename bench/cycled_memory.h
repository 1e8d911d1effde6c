#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "bench/device_array.h"

namespace tessera::bench {

// Many copies of one working set in device memory, so that a benchmark does not find its operands
// in a cache. All copies together take `at_least` bytes or more. A caller that cycles over them
// reuses a copy only after all others. Each operand of each copy starts at a multiple of 256 bytes.
class CycledMemory {
 public:
  // `operand_bytes`: bytes of each operand of one copy. There are two or more copies, but at most
  // max_copies (0: no limit).
  CycledMemory(const Device& device, std::initializer_list<int64_t> operand_bytes, int64_t at_least,
               int64_t max_copies = 0);

  static CycledMemory with_copies(const Device& device,
                                  std::initializer_list<int64_t> operand_bytes, int64_t copies);

  int64_t copies() const { return copies_; }
  int64_t bytes() const { return copies_ * copy_bytes_; }

  // Returns: index of the current copy. Advances to the next copy in cyclic order.
  int64_t next() {
    const int64_t copy = cursor_;
    cursor_ = copy + 1 < copies_ ? copy + 1 : 0;
    return copy;
  }

  template <class T>
  T* operand(int64_t copy, size_t index) const {
    return reinterpret_cast<T*>(memory_.as<std::byte>() + copy * copy_bytes_ + offsets_[index]);
  }

  // Copies the contents of copy 0 to all other copies.
  void replicate();

  // Writes `host` to the beginning of an operand of copy 0.
  template <class T>
  void fill(size_t index, const std::vector<T>& host) {
    device_.upload(operand<T>(0, index), host);
  }
  // Writes `count` normally distributed numbers to an operand of copy 0, the same in every run.
  void fill_random(size_t index, int64_t count);

 private:
  const Device& device_;
  std::vector<int64_t> offsets_;
  int64_t copy_bytes_ = 0;
  int64_t copies_ = 0;
  int64_t cursor_ = 0;
  DeviceArray memory_;

  CycledMemory(const Device& device, std::vector<int64_t> offsets, int64_t copies);
  static std::vector<int64_t> offsets_of(std::initializer_list<int64_t> operand_bytes);
  static int64_t copies_of(int64_t copy_bytes, int64_t at_least, int64_t max_copies);
};

// Returns: normally distributed numbers, the same in every run.
std::vector<float> random_floats(int64_t count);

}  // namespace tessera::bench
