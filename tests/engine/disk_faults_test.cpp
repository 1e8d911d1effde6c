// A disk store on a disk that is damaged, full or broken, and in processes that are killed: it has
// the blocks that were put or misses them, and stays below its limit.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "tests/engine/disk_store_fixture.h"

namespace tessera {
namespace {

class DiskFaults : public DiskStoreTest {};

int64_t setting_or(const char* name, int64_t usual) {
  const char* const wanted = std::getenv(name);
  return wanted != nullptr ? std::atoll(wanted) : usual;
}

std::atomic<int64_t> bytes_read = 0;

ssize_t read_and_count(int file, void* bytes, size_t count, off_t offset) {
  bytes_read += static_cast<int64_t>(count);
  return pread(file, bytes, count, offset);
}

// ---- damage

TEST_F(DiskFaults, CutsATornEndAndKeepsTheRest) {
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

TEST_F(DiskFaults, FindsBlocksThatAreNotListedYet) {
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
TEST_F(DiskFaults, NeverReturnsADamagedBlock) {
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
      // The list is made anew. One record is hit; without its segment's head, all are lost.
      const bool in_list = names[f].extension() == ".list";
      ASSERT_GE(found, in_list                     ? 4
                       : at >= Segment::kHeadBytes ? 3
                                                   : 0)
          << names[f] << " byte " << at;
    }
  }
}

TEST_F(DiskFaults, ReadNoPagesWhenAListIsMissing) {
  {
    const auto store = open();
    for (uint32_t i = 0; i < 20; ++i) {
      ASSERT_TRUE(store->put(contents_of(i).block()).ok());
    }
  }
  for (const auto& file : files()) {
    if (file.extension() == ".list") {
      std::filesystem::remove(file);
    }
  }
  bytes_read = 0;
  const DiskCalls calls{.read = read_and_count};
  const auto store = open(kLimit, &calls);
  EXPECT_LT(bytes_read, static_cast<int64_t>(20 * kPages / 10));
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(has(*store, contents_of(i)));
  }
}

// A process was killed between the removals of both files of a segment, again and again.
TEST_F(DiskFaults, LeaveNoFileOfARemovedSegment) {
  for (uint64_t number = 5; number < 50; ++number) {
    const std::string name = "segment-" + std::to_string(number);
    write_file(directory_ / "kv" / (name + (number % 2 == 0 ? ".list" : ".kv")), "torn");
  }
  const auto store = open();
  EXPECT_TRUE(files().empty());
  ASSERT_TRUE(store->put(contents_of(1).block()).ok());
  EXPECT_EQ(files_bytes(directory_ / "kv"), store->stats().bytes);
}

// ---- a full or broken disk

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

TEST_F(DiskFaults, SurvivesAFullDisk) {
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

TEST_F(DiskFaults, TakesAReadErrorForAMiss) {
  const DiskCalls calls{.read = read_with_errors};
  const auto store = open(kLimit, &calls);
  ASSERT_TRUE(store->put(contents_of(1).block()).ok());
  ASSERT_TRUE(store->put(contents_of(2).block()).ok());
  failing_reads = 1;
  EXPECT_FALSE(has(*store, contents_of(1)));
  EXPECT_TRUE(has(*store, contents_of(2)));
  EXPECT_EQ(store->stats().read_errors, 1);
}

TEST_F(DiskFaults, StaysAsItIsIfNothingCanBeWritten) {
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

// Also in the middle of a head, of pages and of an entry of the list.
TEST_F(DiskFaults, HaveTheSameBlocksAfterARestartIfTheDiskIsFullAtAnyByte) {
  const DiskCalls calls{.write = write_until_full};
  int64_t kept = 0;
  for (int64_t bytes = 0; bytes < 1800; bytes += 5) {
    std::filesystem::remove_all(directory_ / "kv");
    std::vector<bool> found;
    {
      room = bytes;
      const auto store = open(kLimit, &calls);
      for (uint32_t i = 0; i < 4; ++i) {
        store->put(contents_of(i, 0, 200).block()).IgnoreError();
      }
      ASSERT_GT(store->stats().write_errors, 0);
      for (uint32_t i = 0; i < 4; ++i) {
        found.push_back(has(*store, contents_of(i, 0, 200)));
      }
      ASSERT_LE(files_bytes(directory_ / "kv"), bytes);
    }
    const auto store = open();
    for (uint32_t i = 0; i < 4; ++i) {
      ASSERT_EQ(has(*store, contents_of(i, 0, 200)), found[i]) << bytes;
      kept += found[i] ? 1 : 0;
    }
  }
  EXPECT_GT(kept, 0);
}

int sync_with_errors(int) {
  errno = EIO;
  return -1;
}

TEST_F(DiskFaults, CountWhatCannotBeSynced) {
  const DiskCalls calls{.sync = sync_with_errors};
  const auto store = open(kLimit, &calls);
  ASSERT_TRUE(store->put(contents_of(1).block()).ok());
  store->sync();
  EXPECT_EQ(store->stats().write_errors, 1);
  EXPECT_TRUE(has(*store, contents_of(1)));
}

// ---- killed processes

constexpr uint32_t kKeptNumbers = 300;  // more than fit
constexpr int kWrongBlock = 3;          // exit status

[[noreturn]] void read_until_killed(DiskStore& store, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> pages(kPages);
  for (;;) {
    const Contents expected = contents_of(static_cast<uint32_t>(random() % kKeptNumbers));
    const std::optional<BlockId> id = store.find(expected.id.path, 0);
    if (id.has_value() && store.read(*id, expected.tokens, pages).ok() && pages != expected.pages) {
      _exit(kWrongBlock);
    }
  }
}

[[noreturn]] void work_until_killed(const std::filesystem::path& directory, uint32_t seed) {
  auto store = DiskStore::open({directory, kLimit});
  if (!store.ok()) {
    _exit(1);
  }
  std::thread([&] { read_until_killed(**store, seed + 1); }).detach();
  std::mt19937 random(seed);
  for (;;) {
    const Contents block = contents_of(static_cast<uint32_t>(random() % kKeptNumbers));
    const auto deed = static_cast<uint32_t>(random() % 512);
    if (deed == 0) {
      (*store)->clear();
    } else if (deed < 8) {
      (*store)->sync();
    } else if (deed < 32) {
      (*store)->erase(block.id);
    } else {
      (*store)->put(block.block()).IgnoreError();
    }
  }
}

TEST_F(DiskFaults, HaveNoWrongBlockAfterTheirProcessWasKilled) {
  const int64_t kills = setting_or("TESSERA_STORE_KILLS", 20);
  std::mt19937 random(7);
  int64_t found = 0;
  for (int64_t i = 0; i < kills; ++i) {
    const auto seed = static_cast<uint32_t>(random());
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      work_until_killed(directory_ / "kv", seed);
    }
    usleep(static_cast<useconds_t>(random() % 20000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit status " << WEXITSTATUS(status) << ", kill " << i;
    ASSERT_LE(files_bytes(directory_ / "kv"), kLimit);
    const auto store = open();
    ASSERT_EQ(files_bytes(directory_ / "kv"), store->stats().bytes) << "files that nobody counts";
    for (uint32_t number = 0; number < kKeptNumbers; ++number) {
      found += has(*store, contents_of(number)) ? 1 : 0;
    }
    EXPECT_EQ(store->stats().damaged_blocks, 0);
  }
  EXPECT_GT(found, kills);
}

// ---- the start

// Pages are holes in the files, so a large store takes little of the disk.
ssize_t write_without_pages(int file, const void* bytes, size_t count, off_t offset) {
  if (count < 65536) {
    return pwrite(file, bytes, count, offset);
  }
  const auto end = offset + static_cast<off_t>(count);
  return ftruncate(file, end) == 0 ? static_cast<ssize_t>(count) : -1;
}

int sync_nothing(int) {
  return 0;
}

struct Start {
  int64_t blocks = 0;
  double seconds = 0;
};

Start start_of(const std::filesystem::path& directory, int64_t limit) {
  bytes_read = 0;
  const DiskCalls calls{.read = read_and_count};
  const auto begin = std::chrono::steady_clock::now();
  const auto store = DiskStore::open({directory, limit, &calls});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE(store.ok()) << store.status();
  return {store.ok() ? (*store)->stats().blocks : 0, took.count()};
}

// TESSERA_STORE_GIB sets the size of the store.
TEST_F(DiskFaults, ReadTheirListsAloneAtTheStart) {
  const int64_t limit = setting_or("TESSERA_STORE_GIB", 1) << 30;
  const DiskCalls calls{.write = write_without_pages, .sync = sync_nothing};
  // 64 tokens of 28 layers and 2 KV heads of 128 numbers in k8v4, as Qwen2.5-Coder-1.5B has.
  const std::vector<std::byte> pages(700'000);
  const std::vector<int32_t> tokens(64, 1);
  int64_t blocks = 0;
  {
    const auto store = open(limit, &calls);
    std::mt19937_64 random(3);
    for (int64_t bytes = 0; bytes < limit; bytes = store->stats().bytes + 2 * std::ssize(pages)) {
      BlockId id;
      for (std::byte& byte : id.path.bytes) {
        byte = static_cast<std::byte>(random());
      }
      ASSERT_TRUE(store->put({id, tokens, pages}).ok());
    }
    blocks = store->stats().blocks;
  }
  const int64_t list_bytes = 64 * (blocks + 64);
  const Start listed = start_of(directory_ / "kv", limit);
  EXPECT_EQ(listed.blocks, blocks);
  EXPECT_LE(bytes_read, list_bytes);
  EXPECT_LT(listed.seconds, 1);
  for (const auto& file : files()) {
    if (file.extension() == ".list") {
      std::filesystem::remove(file);
    }
  }
  const Start unlisted = start_of(directory_ / "kv", limit);
  EXPECT_EQ(unlisted.blocks, blocks);
  EXPECT_LE(bytes_read, 2 * list_bytes) << "heads alone";
  std::printf("%lld blocks: a start takes %.3f s, without lists %.3f s\n",
              static_cast<long long>(blocks), listed.seconds, unlisted.seconds);
}

}  // namespace
}  // namespace tessera
