#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "tests/kernels/compression_world.h"

namespace tessera {
namespace {

// Compresses a sequence for the first time, behind its prompt.
void compress_prompt(CompressionWorld& world, int32_t slot) {
  KvCompression sequence = world.compression(slot);
  sequence.pool_scores = true;
  ThreadPool threads(2);
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  std::vector<std::byte> scratch(
      static_cast<size_t>(backend.kv_compress_scratch_bytes(world.pages(), threads.stream())));
  KvCompressed result;
  backend.kv_compress({world.arena().pool(), {&sequence, 1}, {&result, 1}, scratch},
                      threads.stream());
}

std::vector<float> scores_of(CompressionWorld& world, int32_t row) {
  std::vector<float> scores;
  world.for_each_token_score(
      0, row, [&](KvTokenScore& token_score) { scores.push_back(token_score.score); });
  return scores;
}

// The scores of a row before and after a first compression, which keeps all of 200 tokens.
struct PooledScores {
  std::vector<float> before;
  std::vector<float> after;
};
PooledScores pooled_scores(KvPolicy policy) {
  policy.keep_share = 1;
  policy.allocator = KvAllocator::uniform;
  CompressionWorld world({.formats = {policy.high}}, 9);
  world.open(0, policy, 200);
  world.append(0, 200);
  PooledScores scores{.before = scores_of(world, 3), .after = {}};
  compress_prompt(world, 0);
  scores.after = scores_of(world, 3);
  return scores;
}

// Positions that KVCrush keeps of a prompt, from its words: no cutoffs, no ranks. All tokens that a
// rule may change were seen by all queries that count.
class CrushOracle {
 public:
  CrushOracle(std::vector<float> scores, const KvPolicy& policy)
      : scores_(std::move(scores)), policy_(policy), tokens_(static_cast<int32_t>(scores_.size())) {
    for (int32_t i = 0; i < tokens_; ++i) {
      const bool recent = i / kKvGroup >= tokens_ / kKvGroup - policy.recent;
      (i < policy.sinks || recent ? kept_ : own_).insert(i);
    }
  }

  std::set<int32_t> kept() {
    const std::set<int32_t> better = best(own_, std::ssize(own_) / 2);
    const int32_t pool = policy_.score_pool;
    const int32_t seen = tokens_ - policy_.score_window;
    std::map<int32_t, int32_t> distances;  // of windows
    for (int32_t first = 0; first + pool <= seen; first += pool) {
      int32_t distance = 0;
      bool changeable = true;
      for (int32_t i = 0; i < pool; ++i) {
        const bool anchor = i % 2 == 1;
        distance += better.contains(first + i) == anchor ? 0 : 1;
        changeable = changeable && own_.contains(first + i);
      }
      if (changeable) {
        distances[first] = distance;
      }
    }
    for (int32_t first = 0; first < seen; first += pool) {
      const auto begin = scores_.begin() + first;
      const auto end = scores_.begin() + std::min(seen, first + pool);
      std::fill(begin, end, std::accumulate(begin, end, 0.0f) / static_cast<float>(end - begin));
    }
    const auto budget = static_cast<int64_t>(std::ceil(double{policy_.keep_share} * tokens_));
    const int64_t keep = std::clamp<int64_t>(budget - std::ssize(kept_), 0, std::ssize(own_));
    const int64_t kept_windows = keep / pool;
    const auto wanted =
        static_cast<int64_t>(policy_.representative_share * static_cast<float>(kept_windows));
    const std::set<int32_t> important = best(own_, keep - wanted * pool);
    std::vector<int32_t> candidates;
    for (const auto& [first, distance] : distances) {
      if (!important.contains(first + pool - 1)) {
        candidates.push_back(first);
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](int32_t a, int32_t b) { return distances[a] < distances[b]; });
    for (int64_t part = 0; part < std::min(wanted, std::ssize(candidates)); ++part) {
      const int64_t parts = std::min(wanted, std::ssize(candidates));
      const int64_t first = div_ceil(part * std::ssize(candidates), parts);
      for (int32_t i = 0; i < pool; ++i) {
        scores_[static_cast<size_t>(candidates[static_cast<size_t>(first)] + i)] = HUGE_VALF;
      }
    }
    std::set<int32_t> all = best(own_, keep);
    all.insert(kept_.begin(), kept_.end());
    return all;
  }

 private:
  std::set<int32_t> best(const std::set<int32_t>& of, int64_t count) const {
    std::vector<std::pair<float, int32_t>> ranked;
    for (const int32_t position : of) {
      ranked.emplace_back(scores_[static_cast<size_t>(position)], position);
    }
    std::sort(ranked.rbegin(), ranked.rend());
    std::set<int32_t> found;
    for (int64_t i = 0; i < count; ++i) {
      found.insert(ranked[static_cast<size_t>(i)].second);
    }
    return found;
  }

  std::vector<float> scores_;
  const KvPolicy& policy_;
  int32_t tokens_;
  std::set<int32_t> own_;
  std::set<int32_t> kept_;  // with any scores
};

TEST(KvCompress, PoolsThePromptsScoresOverNeighbours) {
  const KvPolicy policy = find_kv_preset("snapkv")->policy;
  const PooledScores scores = pooled_scores(policy);
  const int32_t seen = 200 - policy.score_window;
  for (int32_t i = 0; i < 200; ++i) {
    float expected = scores.before[static_cast<size_t>(i)];
    for (int32_t j = std::max(0, i - 3); i < seen && j <= std::min(seen - 1, i + 3); ++j) {
      expected = std::max(expected, scores.before[static_cast<size_t>(j)]);
    }
    EXPECT_EQ(scores.after[static_cast<size_t>(i)], expected) << "token " << i;
  }
}

TEST(KvCompress, PoolsThePromptsScoresByWindow) {
  const KvPolicy policy = find_kv_preset("windowkv")->policy;
  const PooledScores scores = pooled_scores(policy);
  const auto seen = static_cast<size_t>(200 - policy.score_window);
  for (size_t i = 0; i < 200; ++i) {
    double expected = scores.before[i];
    if (i < seen) {
      const size_t first = i / 8 * 8;
      const size_t end = std::min(seen, first + 8);
      const auto* const begin = scores.before.data();
      expected =
          std::accumulate(begin + first, begin + end, 0.0) / static_cast<double>(end - first);
    }
    EXPECT_NEAR(scores.after[i], expected, 1e-6 * expected) << "token " << i;
  }
}

TEST(KvCompress, KeepsWindowsThatStandForOthers) {
  for (const int32_t pool : {2, 7, 8, 32}) {
    for (const float share : {0.0f, 0.25f, 0.6f, 1.0f}) {
      for (const int32_t tokens : {330, 399}) {
        KvPolicy policy = find_kv_preset("kvcrush")->policy;
        policy.score_pool = pool;
        policy.representative_share = share;
        policy.keep_share = 0.5f;
        ASSERT_EQ(policy_error(policy), "");
        const auto seed = static_cast<uint32_t>(tokens * 100 + pool);
        CompressionWorld world({.formats = {policy.high}}, seed);
        world.open(0, policy, tokens);
        world.append(0, tokens);
        std::vector<std::set<int32_t>> expected;
        for (int32_t row = 0; row < world.rows(); ++row) {
          expected.push_back(CrushOracle(scores_of(world, row), policy).kept());
        }
        compress_prompt(world, 0);
        for (int32_t row = 0; row < world.rows(); ++row) {
          std::set<int32_t> kept;
          for (const auto& [position, token] : world.stored_row(0, row)) {
            kept.insert(position);
          }
          EXPECT_EQ(kept, expected[static_cast<size_t>(row)])
              << pool << ' ' << share << ", seed " << seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
