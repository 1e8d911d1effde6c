#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/pages/page_codec.h"
#include "tests/kernels/compression_world.h"
#include "tests/kernels/policies.h"

namespace tessera {
namespace {

// Scores of the section alone decide as scores of all tokens, and kv_share finds the same pages.
TEST(KvCompress, NeedsTheScoresOfASectionsOwnTokensAlone) {
  constexpr int32_t kSection = 128;
  const KvPolicy policy = replaying();
  WorldShape shape{.formats = {policy.high}};
  shape.context = 6 * kSection;
  CompressionWorld all(shape, 50);
  shape.section_scores = kSection;
  CompressionWorld alone(shape, 50);
  for (CompressionWorld* world : {&all, &alone}) {
    world->open(1, policy, 4 * kSection);
  }
  for (int32_t section = 0; section < 3; ++section) {
    for (CompressionWorld* world : {&all, &alone}) {
      world->append(1, 2 * kSection);  // a section and its replay
      CompressionWorld::Sequence& at = world->sequence(1);
      at.forgotten = kSection;
      at.section = world == &alone ? kSection : 0;
      at.policy.budget().amount = KvAmount::of_tokens((section + 1) * kSection / 2);
      at.policy.sinks = std::max(policy.sinks, section * kSection);
      at.policy.recent = 0;
      at.evaluated = 0;
    }
    for (int32_t i = 0; i < all.rows(); ++i) {
      const int64_t row = all.row(1, i);
      const int32_t first = all.pages().rows[row].high - 2 * kSection;
      std::copy_n(all.pages().token_score_row(row) + first, kSection,
                  alone.pages().token_score_row(row));
    }
    EXPECT_EQ(alone.compress(1).pages_freed, all.compress(1).pages_freed);
    alone.arena().check_integrity();
    for (int32_t i = 0; i < all.rows(); ++i) {
      const int64_t row = all.row(1, i);
      const int32_t high = all.pages().rows[row].high;
      ASSERT_EQ(alone.pages().rows[row].high, high);
      const KvShare share{.slot = 1, .first = section * kSection, .section = true};
      EXPECT_EQ(first_page_of_section(alone.pages(), share, row, high),
                first_page_of_section(all.pages(), share, row, high));
      const int32_t capacity = all.pages().layouts[0].capacity;
      for (int32_t page = 0; page < high / capacity; ++page) {
        const auto bytes_of = [&](CompressionWorld& world) {
          const std::byte* bytes = world.pages().page(world.pages().table(row)[page]);
          return std::vector<std::byte>(bytes, bytes + world.pages().page_bytes);
        };
        ASSERT_EQ(bytes_of(alone), bytes_of(all)) << "section " << section << " page " << page;
      }
    }
  }
}

// Multiplies the scores of the section before a replay by the squared norms of its tokens' values.
void weigh_by_values(CompressionWorld& world, int32_t section) {
  const KvPagesView pages = world.pages();
  const KvPageLayout& layout = pages.layouts[0];
  for (int32_t i = 0; i < world.rows(); ++i) {
    const int64_t row = world.row(1, i);
    const int32_t first = pages.rows[row].high - 2 * section;
    for (int32_t place = first; place < first + section; ++place) {
      std::vector<float> key(static_cast<size_t>(layout.head_dim));
      std::vector<float> value(key.size());
      decode_token(layout, pages.page(pages.table(row)[place / layout.capacity]),
                   place % layout.capacity, key.data(), value.data());
      double squares = 0;
      for (const float x : value) {
        squares += double{x} * x;
      }
      pages.token_score_row(row)[place].score *= static_cast<float>(squares);
    }
  }
}

TEST(KvCompress, MultipliesScoresByValuesIfTheScorerWeighsTheOutput) {
  constexpr int32_t kSection = 128;
  const KvPolicy policy = replaying();
  WorldShape shape{.formats = {policy.high}};
  shape.context = 4 * kSection;
  // Kept positions of each row: weighed by the test, weighed by the op, not weighed.
  std::vector<std::vector<int32_t>> kept[3];
  for (int32_t world_number = 0; world_number < 3; ++world_number) {
    CompressionWorld world(shape, 51);
    world.open(1, policy, 2 * kSection);
    world.append(1, 2 * kSection);
    CompressionWorld::Sequence& at = world.sequence(1);
    at.forgotten = kSection;
    at.policy.budget().amount = KvAmount::of_tokens(kSection / 2);
    at.policy.recent = 0;
    if (world_number == 0) {
      weigh_by_values(world, kSection);
    } else if (world_number == 1) {
      at.policy.scorer = KvScorer::replay_output;
    }
    world.compress(1);
    for (int32_t i = 0; i < world.rows(); ++i) {
      const int64_t row = world.row(1, i);
      std::vector<int32_t>& positions = kept[world_number].emplace_back();
      for (int32_t place = 0; place < world.pages().rows[row].high; ++place) {
        positions.push_back(world.pages().token_score_row(row)[place].position);
      }
      std::sort(positions.begin(), positions.end());
    }
  }
  EXPECT_EQ(kept[1], kept[0]);
  EXPECT_NE(kept[2], kept[0]);
}

}  // namespace
}  // namespace tessera
