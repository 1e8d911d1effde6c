#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/tier/block_key.h"
#include "engine/tier/disk_store.h"
#include "tests/models/temporary_directory.h"

namespace tessera {

inline constexpr int64_t kLimit = DiskStore::kLeastLimit;
inline constexpr size_t kPages = 6000;  // bytes of a block

struct Contents {
  BlockId id;
  std::vector<int32_t> tokens;
  std::vector<std::byte> pages;

  StoredBlock block() const { return {id, tokens, pages}; }
};

// Returns: block number `number`, whose contents follow from the number.
inline Contents contents_of(uint32_t number, uint8_t grade = 0, size_t bytes = kPages) {
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
inline bool has(BlockStore& store, const Contents& expected) {
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

inline std::string contents_of_file(const std::filesystem::path& name) {
  std::ifstream file(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline int64_t files_bytes(const std::filesystem::path& directory) {
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

}  // namespace tessera
