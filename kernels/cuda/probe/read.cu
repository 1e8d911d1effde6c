#include <algorithm>

#include "kernels/cuda/probe/probe.h"
#include "kernels/cuda/simt/simt.h"
#include "kernels/matrix/view.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kThreads = 256;
constexpr int32_t kInFlight = 4;      // loads in flight for each thread
constexpr int32_t kMaxBlocks = 4096;  // several for each resident block of the largest GPU

// Loaded words are summed. The sum is written to memory only if it has one unlikely value, so that
// the compiler keeps the loads.
TESSERA_KERNEL(kThreads) read_kernel(std::byte* memory, int64_t words) {
  uint32_t sum = 0;
  const int64_t step = int64_t{grid_x()} * kThreads;
  for (int64_t first = int64_t{block_x()} * kThreads + thread(); first < words;
       first += step * kInFlight) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < kInFlight; ++i) {
      if (first + i * step < words) {
        const Words loaded = load_words(memory + 16 * (first + i * step));
        sum += loaded.at[0] ^ loaded.at[1] ^ loaded.at[2] ^ loaded.at[3];
      }
    }
  }
  if (sum == 0x9e3779b9u) {
    *reinterpret_cast<uint32_t*>(memory) = sum;
  }
}

}  // namespace

void read_all(void* memory, int64_t bytes, Stream stream) {
  const int64_t words = bytes / 16;
  const int64_t blocks = div_ceil(words, int64_t{kThreads} * kInFlight);
  launch(
      stream,
      {.grid_x = static_cast<int32_t>(std::min<int64_t>(blocks, kMaxBlocks)), .threads = kThreads},
      read_kernel, static_cast<std::byte*>(memory), words);
}

}  // namespace tessera::cuda
