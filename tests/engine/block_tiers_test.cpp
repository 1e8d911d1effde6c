// The threads between the pool and the stores: blocks that are written, read and cleared at once
// are whole or missing.

#include "engine/tier/block_tiers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>

#include "engine/tier/disk_store.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

constexpr int32_t kTokensOfBlock = 64;
constexpr int32_t kBlocksOfPath = 8;
constexpr size_t kBytesOfBlock = 5000;

// Returns: the tokens of block `index` of path number `path`. Paths have common beginnings.
std::vector<int32_t> tokens_of(uint32_t path, int32_t index) {
  std::vector<int32_t> tokens(kTokensOfBlock, index < 2 ? 0 : static_cast<int32_t>(path));
  tokens[0] = index;
  return tokens;
}

std::byte byte_of(const BlockKey& key) {
  return key.bytes[3];
}

class Traffic {
 public:
  explicit Traffic(BlockTiers& tiers) : tiers_(tiers) {}

  void write(uint32_t path, bool wait) {
    BlockKey key = tiers_.keys().root("salt", 0);
    for (int32_t index = 0; index < kBlocksOfPath; ++index) {
      const std::vector<int32_t> tokens = tokens_of(path, index);
      key = tiers_.keys().next(key, tokens);
      BlockBuffer* const buffer =
          tiers_.writer().begin(wait ? BlockWriter::Time::max() : BlockWriter::Time::min());
      if (buffer != nullptr) {
        buffer->id = {key, 0, 0};
        buffer->tokens.assign(tokens.begin(), tokens.end());
        buffer->pages = kBytesOfBlock;
        std::fill_n(buffer->room.begin(), kBytesOfBlock, byte_of(key));
        tiers_.writer().put(buffer);
      }
    }
  }

  // Returns: false if all jobs are in use.
  bool read(uint32_t path) {
    BlockReader::Job* const job = tiers_.reader().free_job();
    if (job == nullptr) {
      return false;
    }
    BlockKey key = tiers_.keys().root("salt", 0);
    for (int32_t index = 0; index < kBlocksOfPath; ++index) {
      const std::vector<int32_t> tokens = tokens_of(path, index);
      key = tiers_.keys().next(key, tokens);
      job->paths.push_back(key);
      job->tokens.insert(job->tokens.end(), tokens.begin(), tokens.end());
    }
    job->accept = 0;
    tiers_.reader().start(*job);
    reading_.push_back({job, 0});
    return true;
  }

  // Takes what has been read, and ends job number `given_up` before its end.
  void take(size_t given_up) {
    for (size_t i = 0; i < reading_.size(); ++i) {
      Reading& one = reading_[i];
      while (const BlockBuffer* const block = tiers_.reader().front(*one.job)) {
        ASSERT_EQ(block->id.path, one.job->paths[one.next]);
        ASSERT_EQ(block->pages, kBytesOfBlock);
        for (const std::byte byte : block->block().pages) {
          ASSERT_EQ(byte, byte_of(block->id.path));
        }
        tiers_.reader().pop(*one.job);
        ++one.next;
        ++blocks;
      }
      if (i == given_up || tiers_.reader().ended(*one.job)) {
        tiers_.reader().release(*one.job);
        one.job = nullptr;
      }
    }
    std::erase_if(reading_, [](const Reading& one) { return one.job == nullptr; });
  }

  bool idle() const { return reading_.empty(); }
  int64_t blocks = 0;  // read

 private:
  struct Reading {
    BlockReader::Job* job;
    size_t next;
  };
  BlockTiers& tiers_;
  std::vector<Reading> reading_;
};

std::unique_ptr<BlockTiers> tiers_in(const std::filesystem::path& directory) {
  const KvTierOptions options{
      .host_bytes = 300000, .disk = directory, .disk_bytes = DiskStore::kLeastLimit};
  auto tiers = BlockTiers::open(options, {kBytesOfBlock, kTokensOfBlock, kBlocksOfPath}, "model");
  EXPECT_TRUE(tiers.ok()) << tiers.status();
  return std::move(tiers).value();
}

TEST(BlockTiers, GiveBackAPathAndWhatAnotherOneHasInCommon) {
  const TemporaryDirectory directory;
  const auto tiers = tiers_in(directory / "kv");
  Traffic traffic(*tiers);
  traffic.write(5, true);
  tiers->writer().drain();
  ASSERT_TRUE(traffic.read(5));
  ASSERT_TRUE(traffic.read(6));
  while (!traffic.idle()) {
    traffic.take(SIZE_MAX);
    tiers->reader().wait(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(traffic.blocks, kBlocksOfPath + 2);
  EXPECT_EQ(tiers->stats().written_blocks, kBlocksOfPath);
}

TEST(BlockTiers, ServeWritesReadsAndFlushesAtOnce) {
  const TemporaryDirectory directory;
  const auto tiers = tiers_in(directory / "kv");
  Traffic traffic(*tiers);
  std::mt19937 random(5);
  for (int32_t i = 0; i < 3000; ++i) {
    const auto path = static_cast<uint32_t>(random() % 60);
    if (random() % 3 == 0) {
      traffic.write(path, random() % 8 == 0);
    } else {
      traffic.read(path);
    }
    if (random() % 500 == 0) {
      tiers->writer().clear();
    }
    traffic.take(random() % 16);
    const KvTierStats stats = tiers->stats();
    ASSERT_LE(stats.host.bytes, stats.host.limit);
    ASSERT_LE(stats.disk.bytes, stats.disk.limit);
  }
  tiers->writer().drain();
  for (int32_t i = 0; i < 2000 && !traffic.idle(); ++i) {
    traffic.take(SIZE_MAX);
    tiers->reader().wait(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(traffic.idle());
  EXPECT_GT(traffic.blocks, 100);
  EXPECT_EQ(tiers->stats().disk.damaged_blocks, 0);
}

TEST(BlockTiers, AreEmptyForTheCallerAsSoonAsTheyAreCleared) {
  const TemporaryDirectory directory;
  const auto tiers = tiers_in(directory / "kv");
  Traffic traffic(*tiers);
  traffic.write(5, true);
  const BlockKey first = tiers->keys().next(tiers->keys().root("salt", 0), tokens_of(5, 0));
  tiers->writer().drain();
  EXPECT_TRUE(tiers->has(first, 0));
  tiers->writer().clear();
  EXPECT_FALSE(tiers->has(first, 0));
  tiers->writer().drain();
  EXPECT_FALSE(tiers->has(first, 0));
  EXPECT_EQ(tiers->stats().disk.bytes, 0);
}

}  // namespace
}  // namespace tessera
