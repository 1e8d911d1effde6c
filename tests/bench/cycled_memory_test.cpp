#include "bench/cycled_memory.h"

#include <gtest/gtest.h>

#include <set>

#include "bench/device.h"

namespace tessera::bench {
namespace {

const Device& cpu() {
  static const std::unique_ptr<Device> device = make_cpu_device(1);
  return *device;
}

TEST(CycledMemory, HasSoManyCopiesThatTheyGoBeyondWhatIsAsked) {
  const CycledMemory memory(cpu(), {100, 64}, 10'000);
  EXPECT_GE(memory.bytes(), 10'000);
  EXPECT_LT(memory.bytes(), 10'000 + 512);
  EXPECT_EQ(CycledMemory(cpu(), {100'000}, 10).copies(), 2);  // never the same one twice in a row
  EXPECT_EQ(CycledMemory(cpu(), {100}, 10'000, 3).copies(), 3);
  EXPECT_EQ(CycledMemory::with_copies(cpu(), {100}, 7).copies(), 7);
}

TEST(CycledMemory, MeetsEachCopyOnceInARound) {
  CycledMemory memory(cpu(), {100}, 1000);
  std::set<int64_t> met;
  for (int64_t i = 0; i < memory.copies(); ++i) {
    met.insert(memory.next());
  }
  EXPECT_EQ(std::ssize(met), memory.copies());
  EXPECT_EQ(memory.next(), 0);
}

TEST(CycledMemory, KeepsOperandsApartAndAligned) {
  const CycledMemory memory(cpu(), {100, 4, 64}, 1000);
  for (int64_t copy = 0; copy < memory.copies(); ++copy) {
    for (size_t operand = 0; operand < 3; ++operand) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.operand<std::byte>(copy, operand)) % 256, 0u);
    }
    EXPECT_GE(memory.operand<std::byte>(copy, 1) - memory.operand<std::byte>(copy, 0), 100);
    EXPECT_GE(memory.operand<std::byte>(copy, 2) - memory.operand<std::byte>(copy, 1), 4);
  }
}

TEST(CycledMemory, ReplicatesItsFirstCopy) {
  CycledMemory memory(cpu(), {8, 4000}, 100'000);
  memory.fill_random(1, 1000);
  memory.replicate();
  const std::vector<float> expected = random_floats(1000);
  for (int64_t copy = 0; copy < memory.copies(); ++copy) {
    const float* floats = memory.operand<float>(copy, 1);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), floats)) << "copy " << copy;
  }
}

}  // namespace
}  // namespace tessera::bench
