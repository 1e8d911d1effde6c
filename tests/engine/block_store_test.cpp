// The stores below the prefix cache: what was put is found or gone, never altered.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include "engine/tier/block_key.h"
#include "engine/tier/disk_store.h"
#include "engine/tier/memory_store.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

constexpr int64_t kLimit = DiskStore::kLeastLimit;
constexpr size_t kPages = 6000;  // bytes of a block

struct Contents {
  BlockId id;
  std::vector<int32_t> tokens;
  std::vector<std::byte> pages;

  StoredBlock block() const { return {id, tokens, pages}; }
};

// Returns: block number `number`, whose contents follow from the number.
Contents contents_of(uint32_t number, uint8_t grade = 0, size_t bytes = kPages) {
  std::mt19937 random(number * 16 + grade);
  Contents made;
  made.id = {KeyChain("test").root(std::to_string(number), 0), grade, 0};
  for (int32_t i = 0; i < 64; ++i) {
    made.tokens.push_back(static_cast<int32_t>(random() % 1000));
  }
  for (size_t i = 0; i < bytes; ++i) {
    made.pages.push_back(static_cast<std::byte>(random()));
  }
  return made;
}

// Returns: true if the store has the block; aborts the test if it has another one in its place.
bool has(BlockStore& store, const Contents& expected) {
  const std::optional<BlockId> id = store.find(expected.id.path, expected.id.grade);
  if (!id.has_value()) {
    return false;
  }
  std::vector<std::byte> pages(expected.pages.size());
  const auto count = store.read(*id, expected.tokens, pages);
  if (count.ok()) {
    EXPECT_EQ(*count, pages.size());
    EXPECT_TRUE(pages == expected.pages) << "a block with other bytes";
  }
  return count.ok();
}

std::string contents_of_file(const std::filesystem::path& name) {
  std::ifstream file(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int64_t files_bytes(const std::filesystem::path& directory) {
  int64_t sum = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    sum += static_cast<int64_t>(file.file_size());
  }
  return sum;
}

class DiskStoreTest : public testing::Test {
 protected:
  std::unique_ptr<DiskStore> open(int64_t limit = kLimit, const DiskCalls* calls = nullptr) {
    auto store = DiskStore::open({directory_ / "kv", limit, calls});
    EXPECT_TRUE(store.ok()) << store.status();
    return std::move(store).value();
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& file : std::filesystem::directory_iterator(directory_ / "kv")) {
      if (file.path().filename() != "lock") {
        found.push_back(file.path());
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  TemporaryDirectory directory_;
};

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

TEST_F(DiskStoreTest, CutsATornEndAndKeepsTheRest) {
  {
    const auto store = open();
    for (uint32_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(store->put(contents_of(i, 0, 300).block()).ok());
    }
  }
  const std::vector<std::filesystem::path> names = files();
  ASSERT_EQ(names.size(), 2u);  // segment-0.kv, segment-0.list
  const auto whole = static_cast<int64_t>(std::filesystem::file_size(names[0]));
  const int64_t record = (whole - Segment::kHeadBytes) / 3;
  const std::string records = contents_of_file(names[0]);
  const std::string list = contents_of_file(names[1]);
  for (int64_t size = whole - 1; size >= 0; size -= 7) {
    write_file(names[0], records.substr(0, static_cast<size_t>(size)));
    write_file(names[1], list);
    const auto store = open();
    const int64_t left = std::max<int64_t>(0, (size - Segment::kHeadBytes) / record);
    for (uint32_t i = 0; i < 3; ++i) {
      ASSERT_EQ(has(*store, contents_of(i, 0, 300)), i < left) << size;
    }
  }
}

TEST_F(DiskStoreTest, FindsBlocksThatAreNotListedYet) {
  {
    const auto store = open();
    for (uint32_t i = 0; i < 20; ++i) {
      ASSERT_TRUE(store->put(contents_of(i).block()).ok());
    }
  }
  for (const auto& file : files()) {
    if (file.extension() == ".list") {
      std::filesystem::resize_file(file, std::filesystem::file_size(file) / 3);
    }
  }
  const auto store = open();
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(has(*store, contents_of(i)));
  }
}

// Flips bits in every region of both files: heads, tokens, pages, checksums, entries of the list.
TEST_F(DiskStoreTest, NeverReturnsADamagedBlock) {
  {
    const auto store = open();
    for (uint32_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(store->put(contents_of(i, 0, 200).block()).ok());
    }
  }
  const std::vector<std::filesystem::path> names = files();
  std::vector<std::string> whole;
  for (const auto& name : names) {
    whole.push_back(contents_of_file(name));
  }
  std::mt19937 random(3);
  for (size_t f = 0; f < names.size(); ++f) {
    for (size_t at = 0; at < whole[f].size(); ++at) {
      for (size_t other = 0; other < names.size(); ++other) {
        std::string bytes = whole[other];
        if (other == f) {
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        }
        std::ofstream(names[other], std::ios::binary | std::ios::trunc) << bytes;
      }
      const auto store = open();
      int32_t found = 0;
      for (uint32_t i = 0; i < 4; ++i) {
        found += has(*store, contents_of(i, 0, 200)) ? 1 : 0;
      }
      // One block is hit; without its segment's head, all are lost.
      ASSERT_GE(found, names[f].extension() == ".list" || at >= Segment::kHeadBytes ? 3 : 0)
          << names[f] << " byte " << at;
    }
  }
}

TEST_F(DiskStoreTest, LeavesOtherFilesAlone) {
  write_file(directory_ / "kv" / "segment-x.kv", "a");
  write_file(directory_ / "kv" / "notes", "b");
  const auto store = open();
  ASSERT_TRUE(store->put(contents_of(1).block()).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_ / "kv" / "segment-x.kv"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "kv" / "notes"));
}

// ---- faults of the disk

std::atomic<int64_t> room = 0;  // bytes that the full disk still takes
std::atomic<int32_t> failing_reads = 0;

ssize_t write_until_full(int file, const void* bytes, size_t count, off_t offset) {
  if (room <= 0) {
    errno = ENOSPC;
    return -1;
  }
  const size_t part = std::min(count, static_cast<size_t>(room));
  room -= static_cast<int64_t>(part);
  return pwrite(file, bytes, part, offset);
}

ssize_t read_with_errors(int file, void* bytes, size_t count, off_t offset) {
  if (failing_reads > 0) {
    --failing_reads;
    errno = EIO;
    return -1;
  }
  return pread(file, bytes, count, offset);
}

ssize_t write_with_errors(int, const void*, size_t, off_t) {
  errno = EIO;
  return -1;
}

TEST_F(DiskStoreTest, SurvivesAFullDisk) {
  const DiskCalls calls{.write = write_until_full};
  room = 100000;
  {
    const auto store = open(kLimit, &calls);
    int32_t refused = 0;
    for (uint32_t i = 0; i < 60; ++i) {
      refused += store->put(contents_of(i).block()).ok() ? 0 : 1;
      for (uint32_t j = 0; j <= i; ++j) {
        has(*store, contents_of(j));
      }
    }
    EXPECT_GT(refused, 0);
    EXPECT_GT(store->stats().write_errors, 0);
    room = 1000000;
    EXPECT_TRUE(store->put(contents_of(100).block()).ok());
    EXPECT_TRUE(has(*store, contents_of(100)));
  }
  const auto store = open();
  EXPECT_TRUE(has(*store, contents_of(100)));
}

TEST_F(DiskStoreTest, TakesAReadErrorForAMiss) {
  const DiskCalls calls{.read = read_with_errors};
  const auto store = open(kLimit, &calls);
  ASSERT_TRUE(store->put(contents_of(1).block()).ok());
  ASSERT_TRUE(store->put(contents_of(2).block()).ok());
  failing_reads = 1;
  EXPECT_FALSE(has(*store, contents_of(1)));
  EXPECT_TRUE(has(*store, contents_of(2)));
  EXPECT_EQ(store->stats().read_errors, 1);
}

TEST_F(DiskStoreTest, StaysAsItIsIfNothingCanBeWritten) {
  {
    const auto store = open();
    ASSERT_TRUE(store->put(contents_of(1).block()).ok());
  }
  const DiskCalls calls{.write = write_with_errors};
  const auto store = open(kLimit, &calls);
  EXPECT_TRUE(absl::IsUnavailable(store->put(contents_of(2).block())));
  EXPECT_TRUE(has(*store, contents_of(1)));
  EXPECT_FALSE(has(*store, contents_of(2)));
  EXPECT_EQ(store->stats().write_errors, 1);
}

// A child writes as fast as it can and is killed at a random time.
TEST_F(DiskStoreTest, HasNoWrongBlockAfterItsProcessWasKilled) {
  const char* wanted = std::getenv("TESSERA_STORE_KILLS");
  const int32_t kills = wanted != nullptr ? std::atoi(wanted) : 20;
  std::mt19937 random(7);
  int64_t found = 0;
  for (int32_t i = 0; i < kills; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = DiskStore::open({directory_ / "kv", kLimit});
      while (store.ok()) {
        const auto number = static_cast<uint32_t>(random() % 300);
        (*store)->put(contents_of(number).block()).IgnoreError();
      }
      _exit(1);
    }
    usleep(static_cast<useconds_t>(random() % 20000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto store = open();
    ASSERT_LE(files_bytes(directory_ / "kv"), kLimit);
    for (uint32_t number = 0; number < 300; ++number) {
      found += has(*store, contents_of(number)) ? 1 : 0;
    }
    EXPECT_EQ(store->stats().damaged_blocks, 0);
    random.discard(1);
  }
  EXPECT_GT(found, kills);
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
