#include "kernels/cuda/attention/stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

// Shared memory has 32 banks of 4 bytes. A load of 16 bytes a lane takes its lanes eight at a time.
// Eight lanes in different groups of four banks are read in one clock. These tests compare the
// places that lanes of an emulated warp read in a stage.

namespace tessera::cuda {
namespace {

constexpr int32_t kReads = 64;  // of a kernel at most
struct Offsets {
  int64_t of[kReads][simt::kWarp];
};

// Calls visit(read, offset) for each read of a piece of keys or values by the running lane.
template <int kDim, class Visit>
void reads_of(const HalfStages<kDim>& stages, bool keys, Visit&& visit) {
  const std::byte* stage = stages.of[0];
  for (int32_t i = 0; i < 4; ++i) {
    visit(keys ? HalfStages<kDim>::key_row(stage, i) - stage
               : HalfStages<kDim>::value_row(stage, i) - stage);
  }
}
template <int kDim, int kKeyBits, int kValueBits, class Visit>
void reads_of(const CodeStages<kDim, kKeyBits, kValueBits>& stages, bool keys, Visit&& visit) {
  using Stages = CodeStages<kDim, kKeyBits, kValueBits>;
  const std::byte* stage = stages.of[0];
  const int32_t g = simt::lane() / 4;
  const int32_t t = simt::lane() % 4;
  for (int32_t i = 0; keys && i < kKeyLoads<kKeyBits, kDim> / Stages::kOfSet; ++i) {
    visit(Stages::key_words(stage, i) - stage);
  }
  for (int32_t i = 0; !keys && i < kDim / 8 / Stages::kOfValues; ++i) {
    const int32_t half = i % 2;
    const int32_t chunk = i / 2 % 2;
    visit(Stages::value_words(stage, value_part<kValueBits>(chunk, half, t),
                              value_line<kValueBits>(2 * (i / 4) + g / 4, t)) -
          stage);
  }
}

template <class Stages, bool kKeys>
void read_kernel(Offsets* offsets) {
  const auto& stages = simt::shared<Stages>();
  int32_t read = 0;
  reads_of(stages, kKeys, [&](int64_t offset) { offsets->of[read++][simt::lane()] = offset; });
}

// Returns: most lanes of eight neighbours that read different 16 bytes of the same banks.
template <class Stages, bool kKeys>
int64_t conflicts() {
  Offsets offsets;
  std::fill(&offsets.of[0][0], &offsets.of[0][0] + kReads * simt::kWarp, -1);
  simt::launch(Stream{}, {.threads = simt::kWarp, .shared_bytes = sizeof(Stages)},
               read_kernel<Stages, kKeys>, &offsets);
  simt::wait(Stream{});
  int64_t most = 0;
  for (const auto& read : offsets.of) {
    for (int32_t first = 0; first < simt::kWarp && read[0] >= 0; first += 8) {
      std::vector<int64_t> chunks(read + first, read + first + 8);
      std::sort(chunks.begin(), chunks.end());
      chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
      for (int64_t bank = 0; bank < 128; bank += 16) {
        most = std::max<int64_t>(most, std::count_if(chunks.begin(), chunks.end(),
                                                     [&](int64_t at) { return at % 128 == bank; }));
      }
    }
  }
  return most;
}
template <class Stages>
void expect_no_conflicts() {
  EXPECT_EQ((conflicts<Stages, true>()), 1) << "keys";
  EXPECT_EQ((conflicts<Stages, false>()), 1) << "values";
}

TEST(CudaStages, LanesThatReadAtOnceUseDifferentBanks) {
  expect_no_conflicts<HalfStages<128>>();
  expect_no_conflicts<HalfStages<64>>();
  expect_no_conflicts<CodeStages<128, 8, 4>>();
  expect_no_conflicts<CodeStages<128, 4, 2>>();
  expect_no_conflicts<CodeStages<64, 8, 4>>();
  expect_no_conflicts<CodeStages<64, 4, 2>>();
}

}  // namespace
}  // namespace tessera::cuda
