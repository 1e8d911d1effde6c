#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cpu/pages/page_codec.h"
#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_sequences.h"

namespace tessera {

// Two arenas of one shape: one for the oracle, one for the device under test. Both get the same
// calls. Rows may take different free pages, but rows and prefix blocks hold the same tokens.
class TwoArenas : public testing::TestWithParam<Device> {
 protected:
  void make(const KvArenaShape& shape) {
    shape_ = shape;
    expected_ = std::make_unique<ReachedArena>(host_, shape);
    actual_ = std::make_unique<ReachedArena>(device(), shape);
    for (const ReachedArena* arena : {expected_.get(), actual_.get()}) {
      // NaN in every word: old content of a page must not show.
      std::memset((*arena)->view().arena, 0xff, static_cast<size_t>(shape.arena_bytes()));
    }
  }
  const Device& device() const { return GetParam(); }

  // Calls call(backend, arena, stream) for both.
  template <class Call>
  void both(Call&& call) {
    call(*host_.backend, **expected_, host_.stream);
    call(*device().backend, **actual_, device().stream);
    device().wait(device().stream);
  }
  void resize(const std::vector<int32_t>& released, const std::vector<KvGrowth>& grown) {
    std::vector<std::vector<int32_t>> taken;
    both([&](const Backend& backend, KvArena& arena, Stream stream) {
      taken.emplace_back(grown.size(), -1);
      backend.kv_resize({arena.pool(), released, grown, taken.back()}, stream);
    });
    EXPECT_EQ(taken[1], taken[0]) << "pages that each took";
  }

  // Random tokens for spans of some layers; the same for both arenas.
  struct Chunk {
    int32_t slot;
    int32_t context;
    int32_t count;
  };
  void store(const std::vector<Chunk>& chunks, KvTiers tiers, std::vector<int32_t> layers) {
    std::vector<SequenceSpan> spans;
    std::vector<KvGrowth> grown;
    int32_t rows = 0;
    int64_t groups = 0;
    for (const Chunk& chunk : chunks) {
      spans.push_back({chunk.slot, rows, chunk.count, chunk.context, tiers, newest_, 0});
      rows += chunk.count;
      groups += dense_groups(spans.back());
      grown.push_back({chunk.slot, tiers,
                       kKvGroup * (spans.back().closed_after() - spans.back().closed_before())});
    }
    resize({}, grown);
    for (const int32_t layer : layers) {
      store_layer(spans, rows, groups, layer);
    }
  }
  void store_layer(const std::vector<SequenceSpan>& spans, int32_t rows, int64_t groups,
                   int32_t layer) {
    const int64_t cols = int64_t{shape_.kv_heads} * shape_.head_dim;
    std::vector<float> keys = random_floats(random_, rows * cols, spread_);
    std::vector<float> values = random_floats(random_, rows * cols, spread_);
    for (std::vector<float>* floats : {&keys, &values}) {
      for (float& x : *floats) {
        x = different_ > 0 ? static_cast<float>(random_() % static_cast<uint32_t>(different_)) : x;
      }
    }
    keys[0] = std::numeric_limits<float>::infinity();
    values[values.size() - 1] = -1e30f;
    both([&](const Backend& backend, KvArena& arena, Stream stream) {
      const KvPagesView pages = arena.view();
      std::vector<std::byte> dense(
          static_cast<size_t>(groups * pages.kv_heads * pages.residual_layout.page_bytes + 64));
      void* aligned = dense.data();
      size_t space = dense.size();
      std::align(64, 0, aligned, space);
      backend.kv_store({.keys = {keys.data(), rows, cols, cols},
                        .values = {values.data(), rows, cols, cols},
                        .sequences = spans,
                        .pages = pages,
                        .layer = layer,
                        .dense = {static_cast<std::byte*>(aligned), space}},
                       stream);
      device().wait(device().stream);
    });
  }

  // Compares every row: counts, decoded tokens at their places, and their scores.
  void expect_same_tokens(int32_t slot, KvTiers tiers, int32_t open) const {
    (*actual_)->check_integrity();
    ASSERT_EQ((*actual_)->free_pages(), (*expected_)->free_pages());
    const KvPagesView one = (*expected_)->view();
    const KvPagesView other = (*actual_)->view();
    for (int64_t row = slot * shape_.slot_rows(); row < (slot + 1) * shape_.slot_rows(); ++row) {
      SCOPED_TRACE(testing::Message() << "row " << row);
      const KvRow counts = one.rows[row];
      ASSERT_EQ(other.rows[row].high, counts.high);
      ASSERT_EQ(other.rows[row].low, counts.low);
      for (int32_t i = 0; i < counts.high + open; ++i) {
        ASSERT_EQ(token_score(other, row, i), token_score(one, row, i)) << "high score " << i;
      }
      for (int32_t j = 0; j < counts.low; ++j) {
        const int32_t place = one.row_token_scores - 1 - j;
        ASSERT_EQ(token_score(other, row, place), token_score(one, row, place))
            << "low score " << j;
      }
      for (int32_t i = 0; i < counts.high; ++i) {
        ASSERT_EQ(token(other, row, tiers.high, true, i), token(one, row, tiers.high, true, i))
            << "high token " << i;
      }
      for (int32_t j = 0; j < counts.low; ++j) {
        ASSERT_EQ(token(other, row, tiers.low, false, j), token(one, row, tiers.low, false, j))
            << "low token " << j;
      }
    }
  }
  static std::pair<float, int32_t> token_score(const KvPagesView& pages, int64_t row,
                                               int32_t place) {
    if (!pages.scores_all_tokens()) {
      return {};
    }
    const KvTokenScore& at = pages.token_score_row(row)[place];
    return {at.score, at.position};
  }
  // Empty: the row's queries have passed its page.
  static std::vector<float> token(const KvPagesView& pages, int64_t row, uint8_t tier, bool left,
                                  int32_t place) {
    const KvPageLayout& layout = pages.layouts[tier];
    const int32_t entry = place / layout.capacity;
    const int32_t id = pages.table(row)[left ? entry : pages.row_pages - 1 - entry];
    if (id == kNoPage) {
      return {};
    }
    std::vector<float> channels(static_cast<size_t>(2 * pages.head_dim));
    decode_token(layout, pages.page(id), place % layout.capacity, channels.data(),
                 channels.data() + pages.head_dim);
    return channels;
  }

  void expect_same(KvTiers tiers, const std::vector<int32_t>& lengths) const {
    (*actual_)->check_integrity();
    EXPECT_EQ((*actual_)->free_pages(), (*expected_)->free_pages());
    const KvPagesView one = (*expected_)->view();
    const KvPagesView other = (*actual_)->view();
    for (int64_t row = 0; row < shape_.rows(); ++row) {
      ASSERT_EQ(other.rows[row].high, one.rows[row].high) << "row " << row;
      ASSERT_EQ(other.rows[row].low, one.rows[row].low) << "row " << row;
      const int32_t length = lengths[static_cast<size_t>(row / shape_.slot_rows())];
      ASSERT_EQ(row_bytes(**actual_, row, tiers, length),
                row_bytes(**expected_, row, tiers, length))
          << "row " << row;
    }
    for (int32_t slot = 0; slot < shape_.slots; ++slot) {
      EXPECT_EQ((*actual_)->slot_pages(slot), (*expected_)->slot_pages(slot));
    }
    for (int32_t prefix_block = 0; prefix_block < shape_.prefix_blocks(); ++prefix_block) {
      EXPECT_EQ((*actual_)->prefix_block_pages(prefix_block),
                (*expected_)->prefix_block_pages(prefix_block));
    }
  }

  ThreadPool pool_{1};
  const Device host_{
      .name = "scalar", .backend = &cpu_backend(CpuIsa::scalar), .stream = pool_.stream()};
  std::mt19937 random_{7};
  float spread_ = 1.0f;
  int32_t different_ = 0;  // number of different values, small integers; 0: normal floats
  int32_t newest_ = 0;     // SequenceSpan::newest
  KvArenaShape shape_;
  std::unique_ptr<ReachedArena> expected_;
  std::unique_ptr<ReachedArena> actual_;
};

inline KvArenaShape shape_of(std::vector<KvFormat> formats, int32_t head_dim, int32_t page_tokens) {
  KvArenaShape shape{.formats = std::move(formats),
                     .head_dim = head_dim,
                     .slots = 3,
                     .layers = 2,
                     .kv_heads = 2,
                     .context = 400};
  shape.page_bytes = KvPageLayout::make(shape.formats[0], head_dim, page_tokens).page_bytes;
  shape.pages = static_cast<int32_t>(shape.rows()) * shape.row_pages();
  return shape;
}

}  // namespace tessera
