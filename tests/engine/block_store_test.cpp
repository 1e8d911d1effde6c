// The stores below the prefix cache: what was put is found or gone, never altered.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "engine/tier/memory_store.h"
#include "tests/engine/disk_store_fixture.h"

namespace tessera {
namespace {

class BlockStores : public DiskStoreTest, public testing::WithParamInterface<const char*> {
 protected:
  std::unique_ptr<BlockStore> store() {
    if (GetParam() == std::string("memory")) {
      return std::make_unique<MemoryStore>(kLimit);
    }
    return open();
  }
};

TEST_P(BlockStores, GiveBackWhatWasPut) {
  const auto store = this->store();
  EXPECT_FALSE(has(*store, contents_of(1)));
  ASSERT_TRUE(store->put(contents_of(1).block()).ok());
  EXPECT_TRUE(has(*store, contents_of(1)));
  EXPECT_FALSE(has(*store, contents_of(2)));
  EXPECT_EQ(store->stats().blocks, 1);
  store->erase(contents_of(1).id);
  EXPECT_FALSE(has(*store, contents_of(1)));
}

TEST_P(BlockStores, FindTheFinestBlockThatIsAccepted) {
  const auto store = this->store();
  const BlockKey path = contents_of(1).id.path;
  ASSERT_TRUE(store->put(contents_of(1, 2).block()).ok());
  EXPECT_FALSE(store->find(path, 1).has_value());
  EXPECT_EQ(store->find(path, 2)->grade, 2);
  ASSERT_TRUE(store->put(contents_of(1, 1).block()).ok());
  EXPECT_EQ(store->find(path, 3)->grade, 1);
  ASSERT_TRUE(store->put(contents_of(1, 3).block()).ok());
  EXPECT_EQ(store->stats().blocks, 2) << "a block coarser than one that is there";
}

TEST_P(BlockStores, RefuseABlockOfOtherTokens) {
  const auto store = this->store();
  const Contents block = contents_of(1);
  ASSERT_TRUE(store->put(block.block()).ok());
  Contents other = block;
  other.tokens[5] ^= 1;
  std::vector<std::byte> pages(kPages);
  EXPECT_TRUE(absl::IsDataLoss(store->read(block.id, other.tokens, pages).status()));
  EXPECT_FALSE(has(*store, block)) << "the damaged block is dropped";
  EXPECT_EQ(store->stats().damaged_blocks, 1);
}

TEST_P(BlockStores, StayBelowTheirLimitAndDropWhatWasNotUsedForTheLongestTime) {
  const auto store = this->store();
  for (uint32_t i = 0; i < 1000; ++i) {
    ASSERT_TRUE(store->put(contents_of(i).block()).ok());
    ASSERT_LE(store->stats().bytes, kLimit);
    ASSERT_TRUE(has(*store, contents_of(0))) << "it is read all the time, at " << i;
  }
  EXPECT_GT(store->stats().dropped_blocks, 800);
  EXPECT_GT(store->stats().blocks, 100);
  EXPECT_FALSE(has(*store, contents_of(50)));
  EXPECT_TRUE(has(*store, contents_of(999)));
}

TEST_P(BlockStores, RefuseABlockLargerThanTheirLimit) {
  const auto store = this->store();
  ASSERT_TRUE(store->put(contents_of(1).block()).ok());
  const Contents large = contents_of(2, 0, kLimit);
  EXPECT_TRUE(absl::IsResourceExhausted(store->put(large.block())));
  EXPECT_TRUE(has(*store, contents_of(1))) << "nothing is dropped for it";
}

TEST_P(BlockStores, AreEmptyAfterClear) {
  const auto store = this->store();
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(store->put(contents_of(i).block()).ok());
  }
  store->clear();
  EXPECT_EQ(store->stats().blocks, 0);
  EXPECT_EQ(store->stats().bytes, 0);
  EXPECT_FALSE(has(*store, contents_of(7)));
  ASSERT_TRUE(store->put(contents_of(7).block()).ok());
  EXPECT_TRUE(has(*store, contents_of(7)));
}

TEST_P(BlockStores, TellWhichBlocksTheyHave) {
  PrefixEvents events;
  events.begin(8, 64);
  const auto store = this->store();
  store->report(events, PrefixEvents::Store::disk);
  std::set<uint64_t> told;
  const auto read = [&] {
    PrefixEvents::Batch batch;
    ASSERT_TRUE(events.take(batch));
    for (const PrefixEvents::StoreEvent& event : batch.of_stores) {
      EXPECT_EQ(event.store, PrefixEvents::Store::disk);
      EXPECT_TRUE(event.stored ? told.insert(event.block).second : told.erase(event.block) == 1);
    }
  };
  for (uint32_t i = 0; i < 500; ++i) {
    const Contents contents = contents_of(i);
    StoredBlock block = contents.block();
    block.name = i % 5 == 0 ? 0 : i;  // every fifth one is not for routers
    ASSERT_TRUE(store->put(block).ok());
    if (i % 7 == 0) {
      store->erase(contents.id);
    }
  }
  read();
  for (uint32_t i = 0; i < 500; ++i) {
    EXPECT_EQ(told.contains(i), i % 5 != 0 && has(*store, contents_of(i))) << i;
  }
  EXPECT_GT(told.size(), 50U);
  store->clear();
  read();
  EXPECT_TRUE(told.empty());
}

TEST_P(BlockStores, HoldThroughRandomOperations) {
  const char* wanted = std::getenv("TESSERA_STORE_OPERATIONS");
  const int64_t operations = wanted != nullptr ? std::atoll(wanted) : 5000;
  auto store = this->store();
  const bool durable = GetParam() == std::string("disk");
  std::mt19937 random(11);
  std::map<uint32_t, bool> put;
  for (int64_t i = 0; i < operations; ++i) {
    const auto number = static_cast<uint32_t>(random() % 400);
    switch (random() % 16) {
      case 0:
        store->erase(contents_of(number).id);
        break;
      case 1:
        store->sync();
        break;
      case 2:
        if (durable && random() % 20 == 0) {
          store.reset();
          store = this->store();
        }
        break;
      case 3:
        if (random() % 200 == 0) {
          store->clear();
          put.clear();
        }
        break;
      default:
        if (random() % 2 == 0) {
          ASSERT_TRUE(store->put(contents_of(number, 0, 500 + number * 20).block()).ok());
          put[number] = true;
          EXPECT_TRUE(has(*store, contents_of(number, 0, 500 + number * 20)));
        } else if (has(*store, contents_of(number, 0, 500 + number * 20))) {
          EXPECT_TRUE(put[number]) << "a block that was never put";
        }
    }
    ASSERT_LE(store->stats().bytes, kLimit);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockStores, testing::Values("memory", "disk"),
                         [](const auto& store) { return std::string(store.param); });

// ---- disk

TEST_F(DiskStoreTest, FindsTheBlocksOfAnEarlierProcess) {
  {
    const auto store = open();
    for (uint32_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(store->put(contents_of(i).block()).ok());
    }
  }
  const auto store = open();
  EXPECT_EQ(store->stats().blocks, 100);
  for (uint32_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(has(*store, contents_of(i)));
  }
  ASSERT_TRUE(store->put(contents_of(100).block()).ok());
  EXPECT_TRUE(has(*store, contents_of(100)));
}

TEST_F(DiskStoreTest, KeepsItsFilesFromOthers) {
  const auto store = open();
  ASSERT_TRUE(store->put(contents_of(1).block()).ok());
  struct stat found = {};
  ASSERT_EQ(stat((directory_ / "kv").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  for (const auto& file : files()) {
    ASSERT_EQ(stat(file.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600u) << file;
  }
}

TEST_F(DiskStoreTest, HasOneProcess) {
  const auto store = open();
  const auto second = DiskStore::open({directory_ / "kv", kLimit});
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_NE(second.status().message().find("another process"), std::string::npos);
}

TEST_F(DiskStoreTest, NamesWhatItCannotOpen) {
  EXPECT_TRUE(absl::IsInvalidArgument(DiskStore::open({directory_ / "kv", 5}).status()));
  write_file(directory_ / "file", "");
  const auto status = DiskStore::open({directory_ / "file" / "kv", kLimit}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.message().find("file/kv"), std::string::npos);
}

TEST_F(DiskStoreTest, ObeysALowerLimitAfterARestart) {
  {
    const auto store = open(4 * kLimit);
    for (uint32_t i = 0; i < 500; ++i) {
      ASSERT_TRUE(store->put(contents_of(i).block()).ok());
    }
    ASSERT_GT(store->stats().bytes, 2 * kLimit);
  }
  const auto store = open(kLimit);
  EXPECT_LE(store->stats().bytes, kLimit);
  EXPECT_LE(files_bytes(directory_ / "kv"), kLimit);
  EXPECT_TRUE(has(*store, contents_of(499)));
  EXPECT_FALSE(has(*store, contents_of(0)));
}

TEST_F(DiskStoreTest, LeavesOtherFilesAlone) {
  write_file(directory_ / "kv" / "segment-x.kv", "a");
  write_file(directory_ / "kv" / "notes", "b");
  const auto store = open();
  ASSERT_TRUE(store->put(contents_of(1).block()).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_ / "kv" / "segment-x.kv"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "kv" / "notes"));
}

TEST(KeyChain, NamesABlockByAllThatItDependsOn) {
  KeyChain chain("model");
  const std::vector<int32_t> tokens = {1, 2, 3};
  const BlockKey root = chain.root("", 0);
  EXPECT_EQ(chain.root("", 0), root);
  EXPECT_EQ(KeyChain("model").root("", 0), root);
  EXPECT_NE(KeyChain("other").root("", 0), root);
  EXPECT_NE(chain.root("a", 0), root);
  EXPECT_NE(chain.root("", 1), root);
  EXPECT_NE(chain.root(std::string(1, '\0'), 0), root);
  const BlockKey first = chain.next(root, tokens);
  EXPECT_NE(chain.next(first, tokens), first);
  EXPECT_NE(chain.next(root, std::vector<int32_t>{1, 2, 4}), first);
  EXPECT_NE(chain.next(chain.root("a", 0), tokens), first);
}

}  // namespace
}  // namespace tessera
