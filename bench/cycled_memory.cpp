#include "bench/cycled_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "kernels/view.h"

namespace tessera::bench {
namespace {

constexpr int64_t kCacheLine = 64;

}  // namespace

void give_up(const char* why) {
  std::fprintf(stderr, "tessera-bench: %s\n", why);
  std::exit(1);
}

MappedMemory::MappedMemory(int64_t bytes) : data_(nullptr), size_(static_cast<size_t>(bytes)) {
  void* mapping = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    give_up("the system has not enough memory; ask for less with --memory");
  }
  madvise(mapping, size_, MADV_HUGEPAGE);  // a wish: without them it is a little slower
  data_ = static_cast<std::byte*>(mapping);
  std::memset(data_, 0, size_);  // pages that were only read would all be one
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}

std::vector<int64_t> CycledMemory::offsets_of(std::initializer_list<int64_t> operand_bytes) {
  std::vector<int64_t> offsets{0};
  for (const int64_t bytes : operand_bytes) {
    offsets.push_back(offsets.back() + round_up(bytes, kCacheLine));
  }
  return offsets;
}

int64_t CycledMemory::copies_of(int64_t copy_bytes, int64_t at_least, int64_t most_copies) {
  const int64_t copies = std::max<int64_t>(2, div_ceil(at_least, copy_bytes));
  return most_copies > 0 ? std::min(copies, most_copies) : copies;
}

CycledMemory::CycledMemory(std::vector<int64_t> offsets, int64_t copies)
    : offsets_(std::move(offsets)),
      copy_bytes_(offsets_.back()),
      copies_(copies),
      memory_(copies_ * copy_bytes_) {}

CycledMemory::CycledMemory(std::initializer_list<int64_t> operand_bytes, int64_t at_least,
                           int64_t most_copies)
    : CycledMemory(offsets_of(operand_bytes),
                   copies_of(offsets_of(operand_bytes).back(), at_least, most_copies)) {}

CycledMemory CycledMemory::with_copies(std::initializer_list<int64_t> operand_bytes,
                                       int64_t copies) {
  return CycledMemory(offsets_of(operand_bytes), copies);
}

void CycledMemory::replicate() {
  std::byte* first = memory_.span().data();
  for (int64_t copy = 1; copy < copies_; ++copy) {
    std::memcpy(first + copy * copy_bytes_, first, static_cast<size_t>(copy_bytes_));
  }
}

void CycledMemory::fill_random(size_t index, int64_t count) {
  std::ranges::copy(random_floats(count), operand<float>(0, index));
}

std::vector<float> random_floats(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> floats(static_cast<size_t>(count));
  std::ranges::generate(floats, [&] { return normal(random); });
  return floats;
}

}  // namespace tessera::bench
