#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/kv/kv_arena.h"
#include "tests/kernels/isas.h"

namespace tessera {
namespace {

constexpr KvTiers kTiers{0, 1};

// Two layers of three KV heads. A prefix block of 64 tokens is 4 pages of K8V4 or 2 of K4V2.
class PrefixBlocksTest : public testing::Test {
 protected:
  static constexpr int32_t kRows = 6;
  static constexpr int32_t kPrefixBlock = 64;
  static constexpr int32_t kHeadDim = 8;

  void make(int32_t pages, int32_t slots, int32_t context, bool token_scores = false,
            int32_t prefix_block_tokens = kPrefixBlock) {
    arena_ = KvArena::make({.formats = {kKvK8V4, kKvK4V2},
                            .head_dim = kHeadDim,
                            .page_bytes = 512,
                            .pages = pages,
                            .slots = slots,
                            .layers = 2,
                            .kv_heads = 3,
                            .context = context,
                            .token_scores = token_scores,
                            .prefix_block_tokens = prefix_block_tokens,
                            .prefix_block_tiers = {0, 1}});
    ASSERT_NE(arena_, nullptr);
    scratch_.resize(
        static_cast<size_t>(backend_.kv_demote_scratch_bytes(arena_->view(), pool_.stream())));
  }
  // Adds `tokens` tokens to the slot, with random keys and values.
  void fill(int32_t slot, int32_t tokens) {
    const KvGrowth growth[] = {{slot, kTiers, tokens}};
    backend_.kv_resize({arena_->pool(), {}, growth}, pool_.stream());
    const KvPagesView pages = arena_->view();
    for (int64_t row = slot * kRows; row < (slot + 1) * kRows; ++row) {
      for (int32_t i = 0; i < tokens; ++i) {
        const std::vector<float> token = random_floats(random_, 2 * kHeadDim);
        const int32_t at = pages.rows[row].high++;
        const int32_t capacity = pages.layouts[0].capacity;
        encode_token(pages.layouts[0], token.data(), token.data() + kHeadDim,
                     pages.page(pages.table(row)[at / capacity]), at % capacity);
      }
    }
  }
  void release(int32_t slot) {
    const int32_t slots[] = {slot};
    backend_.kv_resize({arena_->pool(), slots, {}}, pool_.stream());
  }
  void share(int32_t slot, int32_t first, int32_t handle) {
    const KvShare shares[] = {{slot, 0, first, handle}};
    backend_.kv_share({arena_->pool(), shares}, pool_.stream());
  }
  void attach(int32_t slot, std::vector<PrefixBlock> prefix_blocks) {
    const KvAttachment attachments[] = {{slot, kTiers, prefix_blocks}};
    backend_.kv_attach({arena_->pool(), attachments}, pool_.stream());
  }
  void evict(std::vector<int32_t> handles) {
    backend_.kv_evict({arena_->pool(), handles}, pool_.stream());
  }
  void demote(std::vector<PrefixBlock> prefix_blocks) {
    backend_.kv_demote({arena_->pool(), prefix_blocks, 1, scratch_}, pool_.stream());
  }
  // Key, then value, of a token of a row.
  std::vector<float> token(int64_t row, bool high, int32_t at) const {
    const KvPagesView pages = arena_->view();
    const KvPageLayout& layout = pages.layouts[high ? 0 : 1];
    const int32_t entry = at / layout.capacity;
    const int32_t id = pages.table(row)[high ? entry : pages.row_pages - 1 - entry];
    std::vector<float> numbers(2 * kHeadDim);
    decode_token(layout, pages.page(id), at % layout.capacity, numbers.data(),
                 numbers.data() + kHeadDim);
    return numbers;
  }

  const Backend& backend_ = cpu_backend(isas_of_this_machine().back());
  ThreadPool pool_{2};
  std::mt19937 random_{7};
  std::unique_ptr<KvArena> arena_;
  std::vector<std::byte> scratch_;
};

TEST_F(PrefixBlocksTest, OutliveTheSlotThatComputedThem) {
  make(100, 2, 256);
  fill(0, 128);
  const std::vector<float> first = token(2, true, 3);
  const std::vector<float> second = token(5, true, 64);
  share(0, 0, 4);
  share(0, 64, 1);
  release(0);
  EXPECT_EQ(arena_->free_pages(), 100 - 2 * 4 * kRows);
  EXPECT_EQ(arena_->prefix_block_pages(4), 4 * kRows);
  arena_->check_integrity();
  attach(1, {{4, 0}, {1, 0}});
  EXPECT_EQ(arena_->free_pages(), 100 - 2 * 4 * kRows);
  EXPECT_EQ(token(kRows + 2, true, 3), first);
  EXPECT_EQ(token(kRows + 5, true, 64), second);
  EXPECT_EQ(arena_->view().rows[kRows].high, 128);
  arena_->check_integrity();
  evict({1, 4});
  EXPECT_EQ(arena_->free_pages(), 100 - 2 * 4 * kRows);
  release(1);
  EXPECT_EQ(arena_->free_pages(), 100);
  arena_->check_integrity();
}

// Blocks of 128 tokens, and a short one of 64 behind the first.
TEST_F(PrefixBlocksTest, FollowWholeOnesIfTheyAreShort) {
  make(100, 2, 256, true, 128);
  fill(0, 192);
  const std::vector<float> last = token(3, true, 191);
  const KvShare shares[] = {{.slot = 0, .tier = 0, .first = 0, .handle = 0},
                            {.slot = 0, .tier = 0, .first = 128, .handle = 2, .short_tokens = 64}};
  backend_.kv_share({arena_->pool(), shares}, pool_.stream());
  release(0);
  EXPECT_EQ(arena_->prefix_block_pages(0), 8 * kRows);
  EXPECT_EQ(arena_->prefix_block_pages(2), 4 * kRows);
  attach(1, {{.handle = 0}, {.handle = 2, .short_tokens = 64}});
  const KvPagesView pages = arena_->view();
  EXPECT_EQ(pages.rows[kRows].high, 192);
  EXPECT_EQ(token(kRows + 3, true, 191), last);
  EXPECT_EQ(pages.token_score_row(kRows + 3)[191].position, 191);
  arena_->check_integrity();
}

TEST_F(PrefixBlocksTest, AreCopiedForASlotThatMustOwnThem) {
  make(100, 2, 256);
  fill(0, 128);
  share(0, 0, 0);
  share(0, 64, 1);
  release(0);
  attach(1, {{0, 0}, {1, 0}});
  const std::vector<float> shared = token(kRows + 4, true, 10);
  const std::vector<float> owned = token(kRows + 4, true, 100);
  backend_.kv_own({.pool = arena_->pool(), .slot = 1, .tier = 0, .tokens = 64}, pool_.stream());
  EXPECT_EQ(arena_->free_pages(), 100 - 3 * 4 * kRows);
  EXPECT_FALSE(arena_->is_sole_owner(0)) << "tokens before the last 64 stay shared";
  EXPECT_TRUE(arena_->is_sole_owner(1));
  EXPECT_EQ(token(kRows + 4, true, 10), shared);
  EXPECT_EQ(token(kRows + 4, true, 100), owned);
  arena_->check_integrity();
  evict({0, 1});
  EXPECT_EQ(token(kRows + 4, true, 100), owned);
  release(1);
  EXPECT_EQ(arena_->free_pages(), 100);
  arena_->check_integrity();
}

TEST_F(PrefixBlocksTest, AreContinuedByTheSlotsThatBeginWithThem) {
  make(100, 3, 256);
  fill(0, 64);
  share(0, 0, 0);
  attach(1, {{0, 0}});
  attach(2, {{0, 0}});
  fill(1, 64);
  fill(2, 64);
  EXPECT_EQ(arena_->free_pages(), 100 - 3 * 4 * kRows);
  EXPECT_EQ(token(kRows, true, 63), token(2 * kRows, true, 63));
  EXPECT_NE(token(kRows, true, 64), token(2 * kRows, true, 64));
  arena_->check_integrity();
}

TEST_F(PrefixBlocksTest, AreEncodedAnewFromTheirCodesInPlace) {
  make(12 * kRows, 2, 256);
  fill(0, 192);  // no page is free
  std::map<std::pair<int64_t, int32_t>, std::vector<float>> expected;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int32_t t = 0; t < kPrefixBlock; ++t) {
      const std::vector<float> numbers = token(row, true, 64 + t);
      const KvPageLayout layout = KvPageLayout::make(kKvK4V2, kHeadDim, 16);
      std::vector<std::byte> page(static_cast<size_t>(layout.page_bytes));
      encode_token(layout, numbers.data(), numbers.data() + kHeadDim, page.data(), 0);
      std::vector<float>& again = expected[{row, t}];
      again.resize(2 * kHeadDim);
      decode_token(layout, page.data(), 0, again.data(), again.data() + kHeadDim);
    }
  }
  const std::vector<float> untouched = token(3, true, 190);
  for (int32_t prefix_block = 0; prefix_block < 3; ++prefix_block) {
    share(0, prefix_block * kPrefixBlock, prefix_block);
  }
  release(0);
  demote({{1, 0}});
  EXPECT_EQ(arena_->free_pages(), 2 * kRows);
  EXPECT_EQ(arena_->prefix_block_pages(1), 2 * kRows);
  arena_->check_integrity();
  attach(1, {{0, 0}, {1, 1}, {2, 0}});
  EXPECT_EQ(arena_->view().rows[kRows].high, 128);
  EXPECT_EQ(arena_->view().rows[kRows].low, 64);
  for (const auto& [place, numbers] : expected) {
    EXPECT_EQ(token(kRows + place.first, false, place.second), numbers);
  }
  EXPECT_EQ(token(kRows + 3, true, 126), untouched);
  arena_->check_integrity();
}

TEST_F(PrefixBlocksTest, SetThePositionsOfTokenScores) {
  make(100, 2, 256, true);
  fill(0, 128);
  share(0, 0, 0);
  share(0, 64, 1);
  release(0);
  demote({{0, 0}});
  arena_->view().token_score_row(kRows)[0].score = 3;
  attach(1, {{0, 1}, {1, 0}});
  const KvTokenScore* token_scores = arena_->view().token_score_row(kRows);
  EXPECT_EQ(token_scores[0].position, 64);
  EXPECT_EQ(token_scores[0].score, 0);
  EXPECT_EQ(token_scores[63].position, 127);
  EXPECT_EQ(token_scores[arena_->view().row_token_scores - 1].position, 0);
  EXPECT_EQ(token_scores[arena_->view().row_token_scores - 64].position, 63);
}

TEST_F(PrefixBlocksTest, AbortWhereAPageWouldBeWrittenThatOthersRead) {
  make(100, 2, 256);
  fill(0, 64);
  share(0, 0, 0);
  EXPECT_DEATH(demote({{0, 0}}), "others hold");
  EXPECT_DEATH(share(0, 0, 0), "holds a prefix block");
  EXPECT_DEATH(share(0, 64, 1), "without all tokens");
  EXPECT_DEATH(evict({1}), "holds no prefix block");
  EXPECT_DEATH(attach(1, {{0, 1}}), "no prefix block of this format");
  EXPECT_DEATH(attach(0, {{0, 0}}), "the slot holds pages");
}

// Random operations, with the expected state in a few maps.
class RandomPrefixBlocks : public PrefixBlocksTest {
 protected:
  static constexpr int32_t kSlots = 6;

  int32_t pick(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }

  void fill_randomly(int32_t slot, const KvRow& row) {
    if (row.high + row.low < 448 && arena_->free_pages() >= 4 * kRows) {
      fill(slot, 64);
      used_[static_cast<size_t>(slot)] = true;
    }
  }
  void release_randomly(int32_t slot) {
    release(slot);
    used_[static_cast<size_t>(slot)] = false;
    held_[static_cast<size_t>(slot)].clear();
  }
  void share_randomly(int32_t slot, const KvRow& row, int32_t handle) {
    if (row.high >= 64 && !tiers_.contains(handle)) {
      share(slot, pick(row.high / 64) * 64, handle);
      tiers_[handle] = 0;
      held_[static_cast<size_t>(slot)].push_back({handle, 0});
    }
  }
  void attach_randomly(int32_t slot, int32_t handle) {
    const auto s = static_cast<size_t>(slot);
    if (!used_[s] && tiers_.contains(handle)) {
      attach(slot, {{handle, tiers_[handle]}});
      held_[s].push_back({handle, tiers_[handle]});
      used_[s] = true;
    }
  }
  void evict_or_demote_randomly(int32_t handle) {
    if (!tiers_.contains(handle)) {
      return;
    }
    if (pick(3) == 0) {
      evict({handle});
      tiers_.erase(handle);
      for (auto& of : held_) {
        std::erase_if(of, [&](const PrefixBlock& u) { return u.handle == handle; });
      }
    } else if (tiers_[handle] == 0 && !in_use(handle)) {
      const KvPool pool = arena_->pool();
      if (pool.owners[pool.prefix_block_table(handle, 0)[0]] == 1) {
        demote({{handle, 0}});
        tiers_[handle] = 1;
      }
    }
  }
  bool in_use(int32_t handle) const {
    return std::any_of(held_.begin(), held_.end(), [&](const auto& of) {
      return std::any_of(of.begin(), of.end(),
                         [&](const PrefixBlock& u) { return u.handle == handle; });
    });
  }

  std::vector<bool> used_ = std::vector<bool>(kSlots);
  // Prefix blocks that each slot began with.
  std::vector<std::vector<PrefixBlock>> held_ = std::vector<std::vector<PrefixBlock>>(kSlots);
  std::map<int32_t, uint8_t> tiers_;  // of the prefix blocks, by handle
};

TEST_F(RandomPrefixBlocks, KeepOwnersTrue) {
  constexpr uint32_t kSeed = 20;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  random_.seed(kSeed);
  make(400, kSlots, 512);
  for (int step = 0; step < 2000; ++step) {
    const int32_t slot = pick(kSlots);
    const KvRow row = arena_->view().rows[slot * kRows];
    const int32_t handle = pick(arena_->shape().prefix_blocks());
    switch (pick(5)) {
      case 0:
        fill_randomly(slot, row);
        break;
      case 1:
        release_randomly(slot);
        break;
      case 2:
        share_randomly(slot, row, handle);
        break;
      case 3:
        attach_randomly(slot, handle);
        break;
      default:
        evict_or_demote_randomly(handle);
    }
    arena_->check_integrity();
  }
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    release(slot);
  }
  for (const auto& [handle, tier] : tiers_) {
    evict({handle});
  }
  EXPECT_EQ(arena_->free_pages(), 400);
  arena_->check_integrity();
}

}  // namespace
}  // namespace tessera
