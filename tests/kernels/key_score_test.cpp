// The key score output_aware: sums of queries, and the channels of a key that they keep.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/compress/query_sums.h"
#include "kernels/cpu/pages/sparse_codec.h"
#include "tests/kernels/compression_world.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/policies.h"

namespace tessera {
namespace {

KvPolicy output_aware(KvFormat pruned) {
  KvPolicy policy = mustafar();
  policy.low = pruned;
  policy.key_score = KvKeyScore::output_aware;
  return policy;
}

// Pruned key, by sorting: keeps the highest |k| * weight; among equal ones the lower channels.
std::vector<float> pruned(const std::vector<float>& key, const std::vector<float>& weights,
                          int32_t kept) {
  std::vector<int32_t> order(key.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const auto score = [&](int32_t c) {
      return std::abs(key[static_cast<size_t>(c)]) * weights[static_cast<size_t>(c)];
    };
    return score(a) > score(b);
  });
  std::vector<float> out(key.size(), 0.0f);
  for (int32_t i = 0; i < kept; ++i) {
    const auto channel = static_cast<size_t>(order[static_cast<size_t>(i)]);
    out[channel] = key[channel];
  }
  return out;
}

TEST(WeightedKeys, KeepExactlyTheChannelsOfHighestScoreAndOfTiesTheLower) {
  for (const int32_t head_dim : {8, 40, 64, 80, 128, 256}) {
    for (const int32_t kept : {1, 3, head_dim / 2, head_dim - 1, head_dim}) {
      std::mt19937 random(static_cast<uint32_t>(head_dim * 1000 + kept));
      const SparseSide side{head_dim, kept, 16, int64_t{kept} * 2,
                            kept == head_dim ? 0 : round_up(head_dim, 64) / 8};
      std::vector<float> key(static_cast<size_t>(head_dim));
      std::vector<float> weights(key.size());
      for (size_t c = 0; c < key.size(); ++c) {  // few different numbers, so that ties are common
        key[c] = static_cast<float>(static_cast<int32_t>(random() % 9) - 4);
        weights[c] = static_cast<float>(random() % 4);
      }
      std::vector<std::byte> bytes(
          static_cast<size_t>(KvPageLayout::kKeyTile * (side.kept_bytes + side.bitmap_bytes)));
      std::vector<float> read(key.size());
      encode_sparse(side, key.data(), weights.data(), 2, bytes.data(), nullptr);
      decode_sparse(side, bytes.data(), nullptr, 2, read.data());
      EXPECT_EQ(read, pruned(key, weights, kept)) << head_dim << " channels, " << kept << " kept";
    }
  }
}

struct SumShape {
  int32_t head_dim = 16;
  int32_t kv_heads = 2;
  int32_t gqa_ratio = 3;
  int32_t tokens = 300;
};

// Sums of one sequence's queries, in any chunks.
class QuerySums {
 public:
  QuerySums(const SumShape& shape, uint32_t seed) : shape_(shape), pool_(2) {
    std::mt19937 random(seed);
    queries_ = random_floats(random, shape.tokens * cols());
    KvArenaShape arena{.formats = {kKvF16, kKvS50},
                       .head_dim = shape.head_dim,
                       .slots = 2,
                       .layers = 2,
                       .kv_heads = shape.kv_heads,
                       .context = shape.tokens,
                       .token_scores = true,
                       .query_sums = true};
    arena.page_bytes = KvPageLayout::make(kKvF16, shape.head_dim, 16).page_bytes;
    arena.pages = static_cast<int32_t>(arena.rows()) * arena.row_pages();
    arena_ = KvArena::make(arena);
  }

  void add(int32_t context, int32_t count) {
    const SequenceSpan spans[] = {{1, 0, count, context, {0, 1}}};
    const KvScoring scorings[] = {{.token_scores = true, .query_sums = true}};
    KvScoreArgs args;
    args.queries = {queries_.data() + context * cols(), count, cols(), cols()};
    args.sequences = spans;
    args.scorings = scorings;
    args.pages = arena_->view();
    args.layer = 1;
    args.query_heads = shape_.kv_heads * shape_.gqa_ratio;
    add_query_sums(args, pool_.stream());
  }

  std::vector<float> weights(int32_t kv_head, int32_t tokens) const {
    const KvPagesView pages = arena_->view();
    std::vector<float> out(static_cast<size_t>(shape_.head_dim));
    recent_query_weights(pages, pages.row_index(1, 1, kv_head), tokens, out.data());
    return out;
  }

  // Expected weights, query by query, in double precision.
  std::vector<double> expected(int32_t kv_head, int32_t tokens) const {
    std::vector<double> sums(static_cast<size_t>(shape_.head_dim));
    for (int64_t p = (tokens / kKvGroup - 1) * kKvGroup; p < tokens; ++p) {
      for (int32_t head = kv_head * shape_.gqa_ratio; head < (kv_head + 1) * shape_.gqa_ratio;
           ++head) {
        for (int32_t c = 0; c < shape_.head_dim; ++c) {
          const auto at = static_cast<size_t>(p * cols() + head * shape_.head_dim + c);
          sums[static_cast<size_t>(c)] += std::abs(queries_[at]);
        }
      }
    }
    return sums;
  }

 private:
  int64_t cols() const { return int64_t{shape_.kv_heads} * shape_.gqa_ratio * shape_.head_dim; }

  SumShape shape_;
  ThreadPool pool_;
  std::vector<float> queries_;
  std::unique_ptr<KvArena> arena_;
};

TEST(RecentQueryWeights, AreTheSumsOfTheGroupsQueriesOverTheNewestClosedGroupAndTheOpenOne) {
  for (const int32_t gqa_ratio : {1, 2, 4, 7}) {
    QuerySums sums({.head_dim = 24, .kv_heads = 3, .gqa_ratio = gqa_ratio}, 5);
    for (int32_t stored = 0; stored < 300; ++stored) {
      sums.add(stored, 1);
      const int32_t tokens = stored + 1;
      if (tokens < kKvGroup || (tokens % kKvGroup > 1 && tokens % 29 != 0)) {
        continue;
      }
      for (int32_t head = 0; head < 3; ++head) {
        const std::vector<float> weights = sums.weights(head, tokens);
        const std::vector<double> expected = sums.expected(head, tokens);
        for (size_t c = 0; c < weights.size(); ++c) {
          EXPECT_NEAR(weights[c], expected[c], 1e-5 * expected[c])
              << tokens << " tokens, head " << head << ", channel " << c;
        }
      }
    }
  }
}

TEST(RecentQueryWeights, HaveTheSameBitsHoweverTheQueriesAreCut) {
  const SumShape shape;
  for (const int32_t tokens : {64, 70, 128, 191, 192, 299}) {
    QuerySums whole(shape, 9);
    whole.add(0, tokens);
    for (uint32_t seed = 0; seed < 8; ++seed) {
      QuerySums cut(shape, 9);
      std::mt19937 random(seed);
      for (int32_t stored = 0; stored < tokens;) {
        const int32_t count =
            std::min(tokens - stored, 1 + static_cast<int32_t>(random() % (seed < 4 ? 20 : 150)));
        cut.add(stored, count);
        stored += count;
      }
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        EXPECT_EQ(cut.weights(head, tokens), whole.weights(head, tokens))
            << tokens << " tokens, seed " << seed;
      }
    }
  }
}

// Keys are pruned by the weights of their own row, values by magnitude.
TEST(OutputAwareKeys, ArePrunedByRecentQueriesWhenTheyGoToTheLowTier) {
  const KvPolicy policy = output_aware({16, 16, 375, 250});
  for (const CpuIsa isa : isas_of_this_machine()) {
    CompressionWorld world({.formats = {policy.high, policy.low}}, 3, isa);
    world.open(1, policy, 200);
    world.append(1, 200);
    const auto weights_of = [&](int32_t index) {
      std::vector<float> weights(static_cast<size_t>(world.shape().head_dim));
      recent_query_weights(world.pages(), world.row(1, index), 200, weights.data());
      return weights;
    };
    std::vector<CompressionWorld::StoredRow> before;
    for (int32_t i = 0; i < world.rows(); ++i) {
      for (int32_t gqa_ratio = 2; gqa_ratio < 4; ++gqa_ratio) {
        for (int32_t c = 0; c < world.shape().head_dim; ++c) {
          world.pages().query_sum(world.row(1, i), gqa_ratio)[c] = world.random_score();
        }
      }
      before.push_back(world.stored_row(1, i));
    }
    world.compress(1);
    for (int32_t i = 0; i < world.rows(); ++i) {
      int32_t low = 0;
      for (const auto& [position, token] : world.stored_row(1, i)) {
        const std::vector<float>& was = before[static_cast<size_t>(i)].at(position).channels;
        if (!token.low) {
          EXPECT_EQ(token.channels, was) << "position " << position;
          continue;
        }
        ++low;
        const auto middle = was.begin() + world.shape().head_dim;
        std::vector<float> expected = pruned({was.begin(), middle}, weights_of(i), 6);
        const std::vector<float> values =
            pruned({middle, was.end()}, std::vector<float>(expected.size(), 1.0f), 4);
        expected.insert(expected.end(), values.begin(), values.end());
        EXPECT_EQ(token.channels, expected) << "position " << position;
      }
      EXPECT_EQ(low, 128) << "row " << i;
    }
  }
}

TEST(OutputAwareKeys, AreForPoliciesThatPruneKeysBehindADenserTier) {
  KvPolicy policy = output_aware(kKvS70K4V4);
  EXPECT_EQ(policy_error(policy), "");
  for (const KvFormat low : {kKvK8V4, KvFormat{16, 16, 1000, 300}, kKvF16}) {
    EXPECT_NE(policy_error(output_aware(low)).find("key_score"), std::string::npos) << name_of(low);
  }
  KvPolicy uniform{.high = kKvS70, .low = kKvS70, .key_score = KvKeyScore::output_aware};
  EXPECT_NE(policy_error(uniform).find("key_score"), std::string::npos);
}

}  // namespace
}  // namespace tessera
