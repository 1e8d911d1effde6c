#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/compression_world.h"

namespace tessera {
namespace {

// Scores of the section alone decide as scores of all tokens, and kv_share finds the same pages.
TEST(KvCompress, OfASectionNeedsTheScoresOfItsTokensAlone) {
  constexpr int32_t kSection = 128;
  const KvPolicy policy = find_kv_preset("kvzip-50")->policy;
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
      at.policy.keep_share = 0;
      at.policy.keep_tokens = (section + 1) * kSection / 2;
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

}  // namespace
}  // namespace tessera
