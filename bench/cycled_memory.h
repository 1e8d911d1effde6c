#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "bench/device_array.h"

namespace tessera::bench {

// A working set many times over, in the device's memory: so many copies of a few operands that one
// who goes around them meets each again only after `at_least` bytes of others. Each operand of each
// copy starts at a multiple of 256.
class CycledMemory {
 public:
  // Two or more; max_copies, if it is not 0, bounds them.
  CycledMemory(const Device& device, std::initializer_list<int64_t> operand_bytes, int64_t at_least,
               int64_t max_copies = 0);

  static CycledMemory with_copies(const Device& device,
                                  std::initializer_list<int64_t> operand_bytes, int64_t copies);

  int64_t copies() const { return copies_; }
  int64_t bytes() const { return copies_ * copy_bytes_; }

  // The copy whose turn it is; the next call returns the one behind it.
  int64_t next() {
    const int64_t copy = cursor_;
    cursor_ = copy + 1 < copies_ ? copy + 1 : 0;
    return copy;
  }

  template <class T>
  T* operand(int64_t copy, size_t index) const {
    return reinterpret_cast<T*>(memory_.as<std::byte>() + copy * copy_bytes_ + offsets_[index]);
  }

  // Makes all copies equal to copy 0.
  void replicate();

  // Writes the begin of an operand of copy 0.
  template <class T>
  void fill(size_t index, const std::vector<T>& host) {
    device_.upload(operand<T>(0, index), host);
  }
  // With normally distributed numbers, the same at every run.
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

// Normally distributed, the same at every run.
std::vector<float> random_floats(int64_t count);

}  // namespace tessera::bench
