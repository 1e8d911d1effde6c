#include "bench/cycled_memory.h"

#include <algorithm>
#include <random>
#include <utility>

#include "kernels/matrix/view.h"

namespace tessera::bench {
namespace {

constexpr int64_t kAlign = 256;                     // bytes; cuBLASLt assumes this alignment
constexpr int64_t kPieceBytes = int64_t{16} << 20;  // one transfer; a whole copy may be gigabytes

}  // namespace

std::vector<int64_t> CycledMemory::offsets_of(std::initializer_list<int64_t> operand_bytes) {
  std::vector<int64_t> offsets{0};
  for (const int64_t bytes : operand_bytes) {
    offsets.push_back(offsets.back() + round_up(bytes, kAlign));
  }
  return offsets;
}

int64_t CycledMemory::copies_of(int64_t copy_bytes, int64_t at_least, int64_t max_copies) {
  const int64_t copies = std::max<int64_t>(2, div_ceil(at_least, copy_bytes));
  return max_copies > 0 ? std::min(copies, max_copies) : copies;
}

CycledMemory::CycledMemory(const Device& device, std::vector<int64_t> offsets, int64_t copies)
    : device_(device),
      offsets_(std::move(offsets)),
      copy_bytes_(offsets_.back()),
      copies_(copies),
      memory_(device, copies_ * copy_bytes_) {}

CycledMemory::CycledMemory(const Device& device, std::initializer_list<int64_t> operand_bytes,
                           int64_t at_least, int64_t max_copies)
    : CycledMemory(device, offsets_of(operand_bytes),
                   copies_of(offsets_of(operand_bytes).back(), at_least, max_copies)) {}

CycledMemory CycledMemory::with_copies(const Device& device,
                                       std::initializer_list<int64_t> operand_bytes,
                                       int64_t copies) {
  return CycledMemory(device, offsets_of(operand_bytes), copies);
}

void CycledMemory::replicate() {
  std::byte* first = operand<std::byte>(0, 0);
  for (int64_t at = 0; at < copy_bytes_; at += kPieceBytes) {
    const int64_t bytes = std::min(kPieceBytes, copy_bytes_ - at);
    const std::vector<std::byte> piece = device_.download(first + at, bytes);
    for (int64_t copy = 1; copy < copies_; ++copy) {
      device_.upload(first + copy * copy_bytes_ + at, piece);
    }
  }
}

void CycledMemory::fill_random(size_t index, int64_t count) {
  fill(index, random_floats(count));
}

std::vector<float> random_floats(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> floats(static_cast<size_t>(count));
  std::ranges::generate(floats, [&] { return normal(random); });
  return floats;
}

}  // namespace tessera::bench
