#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

#include "tests/kernels/cuda/simt_kernels.h"
#include "tests/kernels/device.h"

namespace tessera {
namespace {

// Emulation and hardware must agree on these results. On a GPU the tests validate the emulation.
class Simt : public testing::TestWithParam<Device> {
 protected:
  Stream stream() const { return GetParam().stream; }
  void wait() const { GetParam().wait(stream()); }
};

TEST_P(Simt, MultipliesF16WithFragmentsAsDocumented) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> small(-8, 8);
  std::vector<f16> a(16 * 16), b(16 * 8);
  std::vector<float> d(16 * 8, 0.5f);
  for (f16& x : a) {
    x = to_f16(static_cast<float>(small(random)));
  }
  for (f16& x : b) {
    x = to_f16(static_cast<float>(small(random)));
  }
  multiply_f16(a.data(), b.data(), d.data(), stream());
  wait();
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      float expected = 0.5f;
      for (size_t k = 0; k < 16; ++k) {
        expected += to_f32(a[row * 16 + k]) * to_f32(b[k * 8 + column]);
      }
      EXPECT_EQ(d[row * 8 + column], expected) << row << " " << column;
    }
  }
}

TEST_P(Simt, MultipliesUnsignedBySignedBytesWithFragmentsAsDocumented) {
  std::mt19937 random(2);
  std::vector<uint8_t> a(16 * 32);
  std::vector<int8_t> b(32 * 8);
  std::vector<int32_t> d(16 * 8, -3);
  std::generate(a.begin(), a.end(), [&] { return static_cast<uint8_t>(random()); });
  std::generate(b.begin(), b.end(), [&] { return static_cast<int8_t>(random()); });
  multiply_bytes(a.data(), b.data(), d.data(), stream());
  wait();
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      int32_t expected = -3;
      for (size_t k = 0; k < 32; ++k) {
        expected += int32_t{a[row * 32 + k]} * int32_t{b[k * 8 + column]};
      }
      EXPECT_EQ(d[row * 8 + column], expected) << row << " " << column;
    }
  }
}

TEST_P(Simt, PrefixSumIsThatOfEveryThreadBefore) {
  std::mt19937 random(3);
  for (const int32_t threads : {32, 64, 96, 512, 1024}) {
    std::vector<int32_t> counts(static_cast<size_t>(threads));
    std::generate(counts.begin(), counts.end(), [&] { return static_cast<int32_t>(random() % 9); });
    std::vector<int32_t> firsts(counts.size() + 1, -1);
    prefix_sum(counts.data(), threads, firsts.data(), stream());
    wait();
    int32_t sum = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      ASSERT_EQ(firsts[i], sum) << threads << " threads, " << i;
      sum += counts[i];
    }
    EXPECT_EQ(firsts.back(), sum);
  }
}

TEST_P(Simt, BallotsCountsBitsAndAddsHalves) {
  std::mt19937 random(4);
  std::vector<uint32_t> words(32);
  uint32_t ballot = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    // Two f16 of moderate size, so that their sums with 1 are rounded.
    words[i] = (static_cast<uint32_t>(random()) & 0x83ff83ffu) | 0x2c002c00u;
    ballot |= (words[i] & 1) << i;
  }
  std::vector<Words32> results(1);
  look_at_words(words.data(), results.data(), stream());
  wait();
  for (size_t i = 0; i < words.size(); ++i) {
    EXPECT_EQ(results[0].ballots[i], ballot);
    EXPECT_EQ(results[0].counts[i], std::popcount(words[i]));
    for (const int shift : {0, 16}) {
      const auto half = [&](uint32_t word) { return f16{static_cast<uint16_t>(word >> shift)}; };
      EXPECT_EQ(half(results[0].sums[i]).bits, to_f16(1 + to_f32(half(words[i]))).bits);
    }
  }
}

TEST_P(Simt, TransposesMatricesThatGroupsOfCopiesBring) {
  constexpr size_t kGroups = 7;
  std::mt19937 random(3);
  std::vector<Rows32> rows(kGroups);
  for (Rows32& group : rows) {
    for (auto& row : group.of) {
      std::generate(std::begin(row), std::end(row),
                    [&] { return static_cast<uint16_t>(random()); });
    }
  }
  std::vector<Fragments32> results(kGroups);
  transpose(rows.data(), static_cast<int32_t>(kGroups), results.data(), stream());
  wait();
  for (size_t group = 0; group < kGroups; ++group) {
    for (size_t lane = 0; lane < 32; ++lane) {
      for (size_t matrix = 0; matrix < 4; ++matrix) {
        const auto* row = rows[group].of + 8 * matrix + 2 * (lane % 4);
        const uint32_t expected = row[0][lane / 4] | uint32_t{row[1][lane / 4]} << 16;
        EXPECT_EQ(results[group].of[lane][matrix], expected) << group << " " << lane;
      }
    }
  }
}

// Counts of 16 bits at odd and even places: the neighbour keeps its count, and exactly one thread
// sees the last owner.
TEST_P(Simt, OneThreadSeesTheLastOwnerGo) {
  constexpr int32_t kOwners = 7;
  constexpr int32_t kBlocks = 5;
  constexpr int32_t kThreads = 64;
  std::vector<uint16_t> owners(kOwners + 1, 0);
  for (int32_t i = 0; i < kBlocks * kThreads; ++i) {
    ++owners[static_cast<size_t>(i % kThreads % kOwners)];
  }
  owners[kOwners] = 0x1234;
  std::vector<uint16_t> before(kBlocks * kThreads);
  release_all(owners.data(), kOwners, kBlocks, kThreads, before.data(), stream());
  wait();
  EXPECT_EQ(owners, (std::vector<uint16_t>{0, 0, 0, 0, 0, 0, 0, 0x1234}));
  EXPECT_EQ(std::count(before.begin(), before.end(), 1), kOwners);
  EXPECT_EQ(std::count(before.begin(), before.end(), 0), 0);
}

TEST_P(Simt, BlocksOfAClusterShareTheirMemory) {
  for (int32_t cluster = 1; cluster <= largest_cluster(stream()); cluster *= 2) {
    const MeetingShape shape{.columns = 3, .clusters = 2, .cluster = cluster, .threads = kMeeting};
    const int32_t blocks = shape.columns * shape.clusters * cluster;
    std::vector<Neighbours> neighbours(static_cast<size_t>(blocks * kMeeting));
    meet_neighbours(shape, neighbours.data(), stream());
    wait();
    for (int32_t i = 0; i < blocks * kMeeting; ++i) {
      const Neighbours& seen = neighbours[static_cast<size_t>(i)];
      const int32_t y = i / kMeeting / shape.columns;
      const auto in_rank = [&](int32_t rank) {  // the thread's counterpart there
        return i + (rank % cluster - y % cluster) * shape.columns * kMeeting;
      };
      SCOPED_TRACE("cluster of " + std::to_string(cluster) + ", thread " + std::to_string(i));
      ASSERT_EQ(seen.blocks, cluster);
      ASSERT_EQ(seen.rank, y % cluster) << "clusters are consecutive in y";
      ASSERT_EQ(seen.read, in_rank(y % cluster + 1));
      ASSERT_EQ(seen.given, in_rank(y % cluster + cluster - 1));
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Simt);
INSTANTIATE_TEST_SUITE_P(Cuda, Simt, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
