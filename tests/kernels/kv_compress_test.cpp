#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/compression_world.h"
#include "tests/kernels/policies.h"

namespace tessera {
namespace {

// Policies of every scorer, allocator and rule, with one tier and with two. Their numbers are
// chosen so that some tokens are kept, demoted and dropped.
std::vector<KvPolicy> policies() {
  std::vector<KvPolicy> all;
  for (const KvPolicy& policy : {leankv(), kv_compress(), snapkv(), streaming(), mustafar(),
                                 retrieving(), strict_leankv(), all_queries()}) {
    all.push_back(policy);
  }
  KvPolicy retrieval = retrieving();  // of fewer tokens, by scores
  retrieval.scorer = KvScorer::mean;
  retrieval.budget().amount = KvAmount::of_tokens(100);
  all.push_back(retrieval);
  for (KvPolicy policy : {leankv(), all_queries(), retrieval, snapkv()}) {
    policy = with_formats(policy, kKvK8V4, kKvK4V2);
    if (policy.keep.is<KeepBudget>()) {
      policy.budget().high_share = 0.4f;
    }
    policy.sinks = 7;
    all.push_back(policy);
    policy.keep = KeepMass{.mass_high = 0.6f, .mass_keep = 0.9f};
    policy.recent = 2;
    all.push_back(policy);
    policy.scorer = KvScorer::squares;
    all.push_back(policy);
    policy.keep = KeepByThresholds{.alpha_high = 1, .alpha_low = 0.3f};
    policy.low = policy.high;
    all.push_back(policy);
  }
  KvPolicy tokens = all_queries();
  tokens.budget().amount = KvAmount::of_tokens(150);
  all.push_back(tokens);
  return all;
}

// Pairs of tiers with every format.
std::vector<std::pair<KvFormat, KvFormat>> tier_pairs() {
  return {{kKvK8V4, kKvK4V2},    {kKvF16, kKvK8V8},    {kKvF16, kKvK4V4},   {kKvK8V8, kKvK8V4},
          {kKvK4V2, kKvK4V1},    {kKvK4V8, kKvK2V4},   {kKvF16, {2, 1}},    {kKvF16, kKvS70},
          {kKvK8V4, kKvS70K4V4}, {kKvS50, kKvS70K4V4}, {kKvK8V4, kKvK4V2R}, {kKvK4V4R, kKvK4V2R},
          {kKvK4V4R, kKvK4V1},   {kKvK4V3R, kKvK3V3R}, {kKvK8V4, kKvK6V4R}, {kKvK6V4R, kKvK4V2},
          {kKvK8V4, kKvK3V2R},   {kKvF16, kKvFp8},     {kKvFp8, kKvK4V2}};
}

std::vector<OracleRow> oracle_rows(const CompressionWorld& world, int32_t slot) {
  std::vector<OracleRow> rows;
  for (int32_t i = 0; i < world.rows(); ++i) {
    OracleRow& row = rows.emplace_back();
    for (const auto& [position, token] : world.stored_row(slot, i)) {
      row.push_back({position, token.score, token.low, token.pinned, false});
    }
  }
  return rows;
}

std::vector<CompressionWorld::StoredRow> stored_rows(const CompressionWorld& world, int32_t slot) {
  std::vector<CompressionWorld::StoredRow> rows;
  for (int32_t i = 0; i < world.rows(); ++i) {
    rows.push_back(world.stored_row(slot, i));
  }
  return rows;
}

// Compresses, then compares every token's tier, score and channels with the oracle's.
void compress_and_compare(CompressionWorld& world, int32_t slot) {
  const auto before = stored_rows(world, slot);
  auto rows = oracle_rows(world, slot);
  const KvCompression sequence = world.compression(slot);
  CompressionOracle(sequence, world.shape().layers, world.shape().kv_heads,
                    world.pages().layouts[sequence.tiers.high].capacity,
                    world.arena().shape().head_profiles)
      .run(rows);
  const int64_t free_before = world.arena().free_pages();
  const KvCompressed result = world.compress(slot);
  world.arena().check_integrity();
  ASSERT_EQ(world.arena().free_pages() - free_before, result.pages_freed);
  const auto after = stored_rows(world, slot);
  int64_t demoted = 0;
  int64_t dropped = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "row " << i);
    for (const OracleToken& token : rows[i]) {
      SCOPED_TRACE(testing::Message() << "position " << token.position);
      const auto& was = before[i].at(token.position);
      const auto found = after[i].find(token.position);
      ASSERT_EQ(found == after[i].end(), token.dropped);
      dropped += token.dropped ? 1 : 0;
      if (token.dropped) {
        continue;
      }
      ASSERT_EQ(found->second.low, token.low);
      ASSERT_EQ(found->second.score, was.score);
      const bool moved = token.low && !was.low;
      demoted += moved ? 1 : 0;
      ASSERT_EQ(found->second.channels, moved ? world.demoted(slot, was.channels) : was.channels);
    }
    ASSERT_EQ(std::ssize(after[i]),
              std::count_if(rows[i].begin(), rows[i].end(),
                            [](const OracleToken& token) { return !token.dropped; }));
  }
  ASSERT_EQ(result.demoted, demoted);
  ASSERT_EQ(result.dropped, dropped);
}

WorldShape shape_for(const KvPolicy& policy) {
  WorldShape shape{.formats = {policy.high}};
  if (!(policy.low == policy.high)) {
    shape.formats.push_back(policy.low);
  }
  return shape;
}

TEST(KvCompress, DecidesAsTheOracleAtThePromptsEndAndGroupByGroup) {
  uint32_t seed = 1;
  for (const KvPolicy& policy : policies()) {
    for (const int32_t prompt : {1, 63, 128, 200, 265}) {
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << " rule " << rule_text(policy) << " scorer "
                   << name_of(policy.scorer) << " prompt " << prompt);
      CompressionWorld world(shape_for(policy), seed++);
      world.open(1, policy, prompt);
      world.append(1, prompt);
      ASSERT_NO_FATAL_FAILURE(compress_and_compare(world, 1));
      while (world.sequence(1).tokens < 390 && policy.compress_generated) {
        const int32_t tokens = world.sequence(1).tokens;
        world.append(1, std::min(kKvGroup - tokens % kKvGroup, 390 - tokens));
        world.change_scores(1);
        ASSERT_NO_FATAL_FAILURE(compress_and_compare(world, 1));
      }
    }
  }
}

// As the engine compresses section after section. The oracle of the allocator `pages` sees a
// sequence whose earlier sections are sinks, and no replay.
TEST(KvCompress, ForgetsAReplayAndKeepsTheBestPagesOfItsSection) {
  constexpr int32_t kSection = 128;
  KvPolicy policy = with_formats(replaying(), kKvK8V4, kKvK8V4);
  for (uint32_t seed = 40; seed < 44; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    WorldShape shape = shape_for(policy);
    shape.context = 6 * kSection;
    CompressionWorld world(shape, seed);
    const int32_t capacity = world.pages().layouts[0].capacity;
    world.open(1, policy, 4 * kSection);
    int64_t kept = 0;
    for (int32_t section = 0; section < 4; ++section) {
      world.append(1, kSection);
      auto rows = oracle_rows(world, 1);
      world.append(1, kSection);  // the replay; its tokens have scores, too
      CompressionWorld::Sequence& at = world.sequence(1);
      at.forgotten = kSection;
      at.policy.budget().amount = KvAmount::of_tokens((section + 1) * kSection / 2);
      at.policy.sinks = std::max(policy.sinks, section * kSection);
      at.policy.recent = 0;
      at.evaluated = 0;
      const KvCompression sequence = world.compression(1);
      CompressionOracle(sequence, shape.layers, shape.kv_heads, capacity,
                        world.arena().shape().head_profiles)
          .run(rows);
      world.compress(1);
      world.arena().check_integrity();
      const auto after = stored_rows(world, 1);
      int64_t pages = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        for (const OracleToken& token : rows[i]) {
          ASSERT_EQ(after[i].contains(token.position), !token.dropped);
        }
        ASSERT_EQ(std::ssize(after[i]) % capacity, 0) << "whole pages";
        pages += std::ssize(after[i]) / capacity;
      }
      kept += world.rows() * (kSection / 2 / capacity);
      ASSERT_EQ(pages, kept) << "each section keeps the same number of pages over all rows";
      ASSERT_EQ(world.arena().slot_pages(1), pages);
    }
  }
}

TEST(KvCompress, ServesEveryPairOfTiersAndHeadDimension) {
  uint32_t seed = 1000;
  for (const auto& [high, low] : tier_pairs()) {
    for (const int32_t head_dim : {8, 20, 24, 64, 80, 128}) {
      // Units of 3 bits are padded in small heads. The engine refuses such a low tier.
      if (token_bytes(low, head_dim) >= token_bytes(high, head_dim)) {
        continue;
      }
      for (const CpuIsa isa : isas_with_own(&Backend::kv_compress)) {
        if (isa != CpuIsa::scalar && head_dim % 8 != 0) {
          continue;
        }
        KvPolicy policy = with_formats(all_queries(), high, low);
        policy.keep = KeepBudget{.amount = KvAmount::of_share(0.7f), .high_share = 0.5f};
        WorldShape shape = shape_for(policy);
        shape.head_dim = head_dim;
        shape.page_tokens = seed % 2 == 0 ? 16 : 48;
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << " head_dim " << head_dim << " " << cpu_backend(isa).isa);
        CompressionWorld world(shape, seed++, isa);
        world.open(0, policy, 230);
        world.append(0, 230);
        ASSERT_NO_FATAL_FAILURE(compress_and_compare(world, 0));
        world.append(0, 100);
        ASSERT_NO_FATAL_FAILURE(compress_and_compare(world, 0));
      }
    }
  }
}

// The bytes are the same for any number of threads and any instruction set.
TEST(KvCompress, DependsOnTheSequenceAlone) {
  uint32_t seed = 1500;
  for (const KvPolicy& policy : policies()) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " rule " << rule_text(policy));
    std::vector<std::vector<CompressionWorld::StoredRow>> worlds;
    for (const int threads : {1, 3}) {
      for (const CpuIsa isa : isas_with_own(&Backend::kv_compress)) {
        WorldShape shape = shape_for(policy);
        shape.threads = threads;
        CompressionWorld world(shape, seed, isa);
        world.open(0, policy, 230);
        world.append(0, 230);
        world.compress(0);
        world.append(0, 90);
        world.change_scores(0);
        world.compress(0);
        worlds.push_back(stored_rows(world, 0));
      }
    }
    for (const auto& rows : worlds) {
      ASSERT_EQ(rows, worlds[0]);
    }
    ++seed;
  }
}

TEST(KvCompress, LeavesPagesAloneThatOthersOwnToo) {
  uint32_t seed = 2000;
  for (const KvPolicy& policy : policies()) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    WorldShape shape = shape_for(policy);
    CompressionWorld world(shape, seed++);
    world.open(0, policy, 300);
    world.append(0, 200);
    world.fork(0, 2);
    const auto shared = stored_rows(world, 2);
    world.append(0, 100);
    ASSERT_NO_FATAL_FAILURE(compress_and_compare(world, 0));
    EXPECT_EQ(stored_rows(world, 2).size(), shared.size());
    for (size_t i = 0; i < shared.size(); ++i) {
      for (const auto& [position, token] : world.stored_row(2, static_cast<int32_t>(i))) {
        ASSERT_EQ(token.channels, shared[i].at(position).channels);
      }
    }
    world.release(2);
    world.append(0, 64);
    ASSERT_NO_FATAL_FAILURE(compress_and_compare(world, 0));
  }
}

TEST(KvCompress, KeepsABudgetInBytes) {
  KvPolicy policy = with_formats(all_queries(), kKvK8V4, kKvK4V2);
  for (const float high_share : {0.0f, 0.3f, 1.0f}) {
    policy.budget().high_share = high_share;
    CompressionWorld world(shape_for(policy), 7);
    const int64_t page_bytes = world.pages().page_bytes;
    for (const int64_t pages : {6, 8, 9}) {
      const int64_t budget = world.rows() * pages * page_bytes + 5;
      policy.budget().amount = KvAmount::of_bytes(budget);
      world.open(0, policy, 350);
      world.append(0, 350);
      world.compress(0);
      const int64_t bytes = world.arena().slot_pages(0) * page_bytes;
      EXPECT_LE(bytes, budget) << "pages " << pages << " high_share " << high_share;
      EXPECT_GT(world.arena().slot_pages(0), world.rows() * (pages - 2));
      world.release(0);
    }
  }
}

TEST(KvCompress, NeedsNoMoreThanOnePageForEachRow) {
  const KvPolicy policy = with_formats(leankv(), kKvK8V4, kKvK4V2);
  CompressionWorld world(shape_for(policy), 8);
  world.open(0, policy, 390);
  world.append(0, 390);
  // Leaves only one free page for each row.
  KvPool pool = world.arena().pool();
  const KvFreeRange all = *pool.free_range;
  pool.free_range->count = world.rows();
  ASSERT_LE(world.rows(), all.count);
  const KvCompressed result = world.compress(0);
  EXPECT_GT(result.demoted, 0);
  EXPECT_GE(pool.free_range->count, 0);
}

// Sinks, recent groups and the open group are all in the high tier.
void expect_protected(CompressionWorld& world, int32_t slot) {
  const CompressionWorld::Sequence& at = world.sequence(slot);
  for (int32_t i = 0; i < world.rows(); ++i) {
    int32_t sinks = 0;
    int32_t recent = 0;
    const int32_t recent_from = std::max(0, at.tokens / kKvGroup - at.policy.recent) * kKvGroup;
    const int32_t high_token_scores =
        world.pages().rows[world.row(slot, i)].high + at.tokens % kKvGroup;
    const KvTokenScore* token_scores = world.pages().token_score_row(world.row(slot, i));
    for (int32_t m = 0; m < high_token_scores; ++m) {
      sinks += token_scores[m].position < std::min(at.policy.sinks, at.tokens) ? 1 : 0;
      recent += token_scores[m].position >= recent_from ? 1 : 0;
    }
    ASSERT_EQ(sinks, std::min(at.policy.sinks, at.tokens));
    ASSERT_EQ(recent, at.tokens - recent_from);
  }
}

// At any length at least the newest 64 tokens are dense, and all others are pruned. Tokens that are
// not in the low tier are in the high tier and in the residual buffer.
TEST(KvCompress, LeavesTheNewestTokensDenseWhereAPolicyPrunesTheOthers) {
  const KvPolicy policy = mustafar();
  CompressionWorld world(shape_for(policy), 4000);
  world.open(0, policy, 150);
  world.append(0, 150);
  world.compress(0);
  while (world.sequence(0).tokens < 384) {
    const int32_t tokens = world.sequence(0).tokens;
    const int32_t dense = tokens % kKvGroup + kKvGroup;
    ASSERT_NO_FATAL_FAILURE(expect_protected(world, 0));
    for (int32_t i = 0; i < world.rows(); ++i) {
      const KvRow& row = world.pages().rows[world.row(0, i)];
      ASSERT_EQ(row.low, tokens - dense) << "of " << tokens;
      ASSERT_EQ(row.high, kKvGroup);
    }
    world.append(0, kKvGroup - tokens % kKvGroup);
    world.compress(0);
  }
}

// For a uniform budget: no row keeps more, unless its protected tokens are more.
void expect_within_budget(CompressionWorld& world, int32_t slot) {
  const CompressionWorld::Sequence& at = world.sequence(slot);
  const KvPolicy& policy = at.policy;
  if (!policy.allocates(KvAllocator::uniform)) {
    return;
  }
  const KvPagesView pages = world.pages();
  const KvAmount amount = policy.budget().amount;
  const int32_t budget = amount.is_tokens()
                             ? amount.tokens()
                             : static_cast<int32_t>(std::ceil(double{amount.share()} * at.tokens));
  for (int32_t i = 0; i < world.rows(); ++i) {
    const int64_t row = world.row(slot, i);
    const KvRow counts = pages.rows[row];
    int32_t shared = 0;  // pages with several owners
    for (int32_t entry = 0; entry < pages.row_pages; ++entry) {
      const int32_t page = pages.table(row)[entry];
      shared += page != kNoPage && world.arena().pool().owners[page] > 1 ? 1 : 0;
    }
    if (shared > 0) {
      continue;
    }
    const int32_t recent_from = std::max(0, at.tokens / kKvGroup - policy.recent) * kKvGroup;
    const int32_t kept_anyway = std::min(policy.sinks, recent_from) + at.tokens - recent_from;
    ASSERT_LE(counts.high + counts.low + at.tokens % kKvGroup, std::max(budget, kept_anyway));
  }
}

// Random operations on sequences, in any order, under every policy and format, with the best
// instruction set of this machine.
TEST(KvCompress, KeepsItsInvariantsThroughAHundredThousandOperations) {
  std::vector<KvPolicy> all = policies();
  for (const auto& [high, low] : tier_pairs()) {
    all.push_back(with_formats(strict_leankv(), high, low));
    all.back().thresholds().alpha_low = 0.4f;
  }
  for (const KvFormat format : named_formats()) {
    if (!(format == kKvF32)) {
      all.push_back(with_formats(all_queries(), format, format));
    }
  }
  const int32_t rounds = 100000 / static_cast<int32_t>(all.size()) + 1;
  uint32_t seed = 3000;
  for (const KvPolicy& policy : all) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " rule " << rule_text(policy));
    WorldShape shape = shape_for(policy);
    shape.head_dim = 16;
    shape.slots = 4;
    CompressionWorld world(shape, seed++, best_cpu_isa());
    std::mt19937& random = world.random();
    for (int32_t round = 0; round < rounds; ++round) {
      const auto slot = static_cast<int32_t>(random() % 4);
      CompressionWorld::Sequence& at = world.sequence(slot);
      if (at.tokens == 0) {
        const auto other = static_cast<int32_t>(random() % 4);
        if (world.sequence(other).tokens > 0 && random() % 2 == 0) {
          world.fork(other, slot);
        } else {
          const auto prompt = static_cast<int32_t>(1 + random() % 300);
          world.open(slot, policy, prompt);
          world.append(slot, prompt);
          world.compress(slot);
        }
      } else if (at.tokens > 330 || random() % 8 == 0) {
        world.release(slot);
      } else {
        const auto count =
            std::min(static_cast<int32_t>(1 + random() % 30), kKvGroup - at.tokens % kKvGroup);
        world.append(slot, count);
        if (at.tokens % kKvGroup == 0 && policy.compress_generated) {
          const KvCompressed result = world.compress(slot);
          ASSERT_GE(result.pages_freed, -world.rows());
          ASSERT_NO_FATAL_FAILURE(expect_protected(world, slot));
          ASSERT_NO_FATAL_FAILURE(expect_within_budget(world, slot));
        }
      }
      world.arena().check_integrity();
    }
  }
}

}  // namespace
}  // namespace tessera
