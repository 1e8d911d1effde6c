// The section step of the prefix cache: blocks that are due, and its counts. Replays of a real
// model are in background_replay_test.cpp.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_presets.h"
#include "engine/tier/block_hash.h"
#include "tests/engine/sections_fixture.h"

namespace tessera {
namespace {

KvCacheOptions step_options(int32_t slots, int32_t context) {
  KvCacheOptions options = section_options(kKvPresetK8V4, slots, context);
  options.section_step = short_sections(kSection).policy;
  return options;
}

// A cache without a model: tokens are counted and scored, but not written.
class SteppedCache : public testing::Test {
 protected:
  static constexpr int32_t kContext = 1024;

  struct Path {
    explicit Path(std::vector<int32_t> all) : tokens(std::move(all)) {
      for (size_t end = kSection; end <= tokens.size(); end += kSection) {
        hashes.push_back(block_hash(std::span(tokens).subspan(end - kSection, kSection)));
      }
    }
    KvPrompt prompt(bool accepts) const {
      return {.tokens = tokens,
              .hashes = hashes,
              .salt = "",
              .format = kKvK8V4,
              .accept = kKvK8V4,
              .accepts_sections = accepts};
    }
    std::vector<int32_t> tokens;
    std::vector<uint64_t> hashes;
  };
  static Path path(int32_t first, int32_t second) {
    std::vector<int32_t> tokens(kSection, first);
    tokens.insert(tokens.end(), kSection, second);
    tokens.push_back(0);  // the last token never matches
    return Path(tokens);
  }

  void SetUp() override {
    auto made =
        KvCache::create(step_options(3, kContext), cpu_backend(CpuIsa::scalar), threads_.stream());
    ASSERT_TRUE(made.ok()) << made.status();
    kv_ = std::move(*made);
  }
  KvMatch match(const Path& path, bool accepts) const {
    return kv_->prefixes().match(path.prompt(accepts), kContext, {});
  }
  void store(const KvSlot& slot, int32_t tokens) {
    const int32_t more = tokens - kv_->position(slot);
    const KvReservation reservation[] = {{slot, tokens}};
    kv_->reserve(reservation);
    each_row(slot, [&](const KvPagesView& pages, int64_t row) { pages.rows[row].high += more; });
  }
  template <class Body>
  void each_row(const KvSlot& slot, Body&& body) {
    const KvPagesView pages = kv_->view();
    const int64_t first = pages.row_index(slot.index(), 0, 0);
    for (int64_t row = first; row < first + kSectionRows; ++row) {
      body(pages, row);
    }
  }
  // A sequence stores the path's blocks and inserts them. Returns: its slot.
  KvSlot sequence(const Path& path, bool accepts) {
    const auto tokens = static_cast<int32_t>(path.hashes.size()) * kSection;
    KvSlot slot = kv_->open_slot();
    kv_->prefixes().attach(slot, match(path, accepts));
    store(slot, tokens);
    kv_->prefixes().insert(slot, path.prompt(accepts), tokens, true);
    kv_->check_integrity();
    return slot;
  }
  void run_sequence(const Path& path, bool accepts) {
    kv_->release(sequence(path, accepts));
    kv_->check_integrity();
  }
  // Returns: the block that was due, as the number of its section on its path; 0: none was.
  int32_t compress_next() {
    const KvMatch due = kv_->prefixes().due_block();
    if (due.blocks() > 0) {
      KvSlot slot = kv_->open_replay(due);
      const int32_t begin = (due.blocks() - 1) * kSection;
      store(slot, kv_->position(slot) + kSection);
      EXPECT_TRUE(kv_->replays(slot));
      each_row(slot, [&](const KvPagesView& pages, int64_t row) {
        for (int32_t i = 0; i < kSection; ++i) {
          pages.token_score_row(row)[i] = {static_cast<float>(random_() % 1000), begin + i};
        }
      });
      kv_->compress_block(slot);
      EXPECT_EQ(kv_->position(slot), due.blocks() * kSection);
      kv_->release(std::move(slot));
      kv_->check_integrity();
    }
    return due.blocks();
  }

  std::mt19937 random_{3};
  ThreadPool threads_{1};
  std::unique_ptr<KvCache> kv_;
};

TEST_F(SteppedCache, CompressesAPathFromItsBeginning) {
  const Path one = path(5, 6);
  run_sequence(one, true);
  EXPECT_EQ(match(one, true).sections.blocks, 0);
  EXPECT_EQ(compress_next(), 1);
  EXPECT_EQ(match(one, true).sections.blocks, 1);
  EXPECT_EQ(match(one, true).blocks(), 2);
  EXPECT_EQ(match(one, true).pages(), kFullPages / 2 + kFullPages);
  EXPECT_EQ(compress_next(), 2);
  EXPECT_EQ(match(one, true).sections.blocks, 2);
  EXPECT_EQ(match(one, true).pages(), kFullPages);
  EXPECT_EQ(compress_next(), 0);
}

TEST_F(SteppedCache, CompressesNoBlockOnAPathInUse) {
  const Path one = path(5, 6);
  const Path other = path(5, 7);
  run_sequence(one, true);
  KvSlot slot = sequence(other, true);
  EXPECT_EQ(compress_next(), 0) << "the second block of `one` waits for the first, which is in use";
  kv_->release(std::move(slot));
  EXPECT_EQ(compress_next(), 1);
  EXPECT_EQ(compress_next(), 2);
  EXPECT_EQ(compress_next(), 2);
  EXPECT_EQ(compress_next(), 0);
}

TEST_F(SteppedCache, GradesBlocksByTheSectionsThatTheyRead) {
  const Path whole = path(5, 6);
  const Path behind = path(5, 7);
  run_sequence(whole, true);
  EXPECT_EQ(compress_next(), 1);
  run_sequence(behind, true);  // its second block has read a section
  run_sequence(whole, false);  // computes the first block again, which replaces the section
  EXPECT_EQ(match(whole, false).blocks(), 2);
  EXPECT_EQ(match(behind, false).blocks(), 1);
  EXPECT_EQ(match(behind, true).blocks(), 2);
  EXPECT_EQ(match(behind, true).sections.blocks, 0);
}

// A whole block before a section: rows hold different numbers of pages in the middle.
TEST_F(SteppedCache, SharesBlocksBehindAnyMixture) {
  const Path one = path(5, 6);
  run_sequence(one, true);
  EXPECT_EQ(compress_next(), 1);
  EXPECT_EQ(compress_next(), 2);
  run_sequence(Path({one.tokens.begin(), one.tokens.begin() + kSection + 1}), false);
  EXPECT_EQ(match(one, true).sections.blocks, 1);
  EXPECT_EQ(match(one, true).blocks(), 2);

  std::vector<int32_t> longer(one.tokens.begin(), one.tokens.begin() + 2 * kSection);
  longer.insert(longer.end(), kSection + 1, 9);
  const Path three(longer);
  KvSlot slot = sequence(three, true);
  EXPECT_EQ(kv_->accounting().slot_pages(slot), 2 * kFullPages + kFullPages / 2);
  kv_->release(std::move(slot));
  EXPECT_EQ(match(three, true).blocks(), 3);
  EXPECT_EQ(compress_next(), 1);
  EXPECT_EQ(compress_next(), 3);
  EXPECT_EQ(match(three, true).pages(), 3 * kFullPages / 2);
}

TEST_F(SteppedCache, LeavesTheLastBlockOfAContextWhole) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kContext; ++i) {
    tokens.push_back(i / kSection);
  }
  run_sequence(Path(tokens), true);
  EXPECT_EQ(compress_next(), 1);
  EXPECT_EQ(compress_next(), 2);
  EXPECT_EQ(compress_next(), 3);
  EXPECT_EQ(compress_next(), 0);
}

TEST(SectionStep, IsRefusedByName) {
  const auto error_of = [](auto&& change) {
    KvCacheOptions options = step_options(2, 1024);
    change(options);
    return refusal(options);
  };
  using testing::HasSubstr;
  EXPECT_EQ(error_of([](KvCacheOptions&) {}), "");
  EXPECT_THAT(error_of([](KvCacheOptions& o) { o.prefix_cache = false; }),
              HasSubstr("no use without a prefix cache"));
  EXPECT_THAT(
      error_of([](KvCacheOptions& o) { o.windows.assign(static_cast<size_t>(o.layers), 100); }),
      HasSubstr("sliding-window attention"));
  EXPECT_THAT(error_of([](KvCacheOptions& o) { o.ladder = {kKvK4V2}; }),
              HasSubstr("k4v2 and a policy that drops tokens do not go together"));
  EXPECT_THAT(error_of([](KvCacheOptions& o) { o.preset = kKvPresetF16; }),
              HasSubstr("its policy stores in k8v4, and no preset"));
  EXPECT_THAT(error_of([](KvCacheOptions& o) { o.preset = short_sections(kSection); }),
              HasSubstr("its policy stores in k8v4, and no preset"));
  EXPECT_THAT(
      error_of([](KvCacheOptions& o) { o.section_step = find_kv_preset("snapkv")->policy; }),
      HasSubstr("must have a scorer that replays"));
}

}  // namespace
}  // namespace tessera
