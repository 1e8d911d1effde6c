#pragma once

#include <algorithm>
#include <cmath>

#include "tests/kernels/cuda/two_arenas.h"
#include "tests/kernels/head_profiles.h"
#include "tests/kernels/policies.h"

namespace tessera {

// Each rule, allocator and scorer, with one tier and with two.
inline std::vector<KvPolicy> policies() {
  std::vector<KvPolicy> all;
  for (const KvPolicy& policy : {leankv(), kv_compress(), snapkv(), streaming(), retrieving(),
                                 strict_leankv(), all_queries()}) {
    all.push_back(policy);
  }
  KvPolicy mass = with_formats(leankv(), kKvK8V4, kKvK4V2);
  mass.keep = KeepMass{.mass_high = 0.6f, .mass_keep = 0.9f};
  mass.recent = 2;
  all.push_back(mass);
  mass.scorer = KvScorer::squares;
  all.push_back(mass);
  // Sparse low tiers: below a dense tier, also with output_aware key scores, and below a sparse
  // tier.
  all.push_back(mustafar());
  all.back().low = kKvS70K4V4;
  all.back().key_score = KvKeyScore::output_aware;
  all.push_back(with_formats(leankv(), kKvS50, kKvS70K4V4));
  for (KvPolicy policy : {all_queries(), retrieving(), kv_compress()}) {
    const bool of_pages = policy.allocates(KvAllocator::pages);
    policy.budget().high_share = of_pages ? 1.0f : 0.4f;
    policy.sinks = 7;
    all.push_back(with_formats(policy, kKvK8V4, of_pages ? kKvK8V4 : kKvK4V2));
  }
  return all;
}

// Sequences that a policy compresses, in both arenas.
class CompressedArenas : public TwoArenas {
 protected:
  void begin(const KvPolicy& policy, int32_t head_dim, uint32_t seed) {
    random_.seed(seed);
    policy_ = policy;
    tiers_ = {0, static_cast<uint8_t>(policy.high == policy.low ? 0 : 1)};
    KvArenaShape shape{.formats = {policy.high},
                       .head_dim = head_dim,
                       .slots = 3,
                       .layers = 2,
                       .kv_heads = 2,
                       .context = 400,
                       .token_scores = true,
                       .query_sums = policy.key_score == KvKeyScore::output_aware,
                       .head_profiles = uneven_head_profiles(4)};
    if (tiers_.low != 0) {
      shape.formats.push_back(policy.low);
    }
    for (const KvFormat format : shape.formats) {
      shape.page_bytes =
          std::max(shape.page_bytes, KvPageLayout::make(format, head_dim, 16).page_bytes);
    }
    if (policy.replays()) {
      shape.prefix_block_tokens = policy.section;
      shape.prefix_block_tiers = {0};
      shape.section_scores = policy.section;
    }
    shape.pages = static_cast<int32_t>(shape.rows()) * (shape.row_pages() + 1);
    make(shape);
    tokens_ = 0;
    section_begin_ = 0;
    evaluated_ = 0;
  }

  // Stores tokens in slot 0 and gives them token scores with positions and coarse scores, so that
  // ties are common. Then all scores grow.
  void append(int32_t count) {
    store({{0, tokens_, count}}, tiers_, {0, 1});
    if (shape_.section_scores > 0) {
      score_section();
      tokens_ += count;
      return;
    }
    for (int64_t row = 0; row < shape_.slot_rows(); ++row) {
      const KvRow counts = (*expected_)->view().rows[row];
      const int32_t left = counts.high + (tokens_ + count) % kKvGroup;
      for (int32_t i = 0; i < left + counts.low; ++i) {
        const int32_t place = i < left ? i : shape_.row_token_scores() - 1 - (i - left);
        const int32_t x = static_cast<int32_t>(random_() % 64);
        const float paid = static_cast<float>(x * x * x) / 65536.0f;
        for (const ReachedArena* arena : {expected_.get(), actual_.get()}) {
          KvTokenScore& token_score = (*arena)->view().token_score_row(row)[place];
          if (i < left && i >= left - count) {
            token_score = {0, tokens_ + i - (left - count)};
          }
          token_score.score = with_scorer(policy_.scorer, [&](auto scorer) {
            return score_after<decltype(scorer)>(token_score.score, paid);
          });
        }
      }
    }
    sum_queries();
    tokens_ += count;
  }

  // Gives the tokens of the section their positions and coarse scores.
  void score_section() {
    for (int64_t row = 0; row < shape_.slot_rows(); ++row) {
      for (int32_t i = 0; i < shape_.section_scores; ++i) {
        const float score = std::floor(static_cast<float>(random_() % 64));
        for (const ReachedArena* arena : {expected_.get(), actual_.get()}) {
          (*arena)->view().token_score_row(row)[i] = {score, section_begin_ + i};
        }
      }
    }
  }

  // Sums of queries with few different values.
  void sum_queries() {
    for (int64_t i = 0; i < (shape_.query_sums ? shape_.slot_query_sum_bytes() / 4 : 0); ++i) {
      const float sum = static_cast<float>(random_() % 4);
      (*expected_)->view().query_sums[i] = sum;
      (*actual_)->view().query_sums[i] = sum;
    }
  }

  // forgotten: last tokens, those of a replay.
  void compress(int32_t prompt, int32_t forgotten = 0) {
    const KvCompression one[] = {{.slot = 0,
                                  .tiers = tiers_,
                                  .policy = policy_,
                                  .tokens = tokens_ - forgotten,
                                  .prompt_tokens = prompt,
                                  .evaluated = evaluated_,
                                  .forgotten = forgotten,
                                  .section = shape_.section_scores,
                                  .pool_scores = evaluated_ == 0 && shape_.section_scores == 0}};
    std::vector<KvCompressed> results;
    both([&](const Backend& backend, KvArena& arena, Stream stream) {
      std::vector<std::byte> scratch(
          static_cast<size_t>(backend.kv_compress_scratch_bytes(arena.view(), stream)));
      backend.kv_compress({arena.pool(), one, {&results.emplace_back(), 1}, scratch}, stream);
    });
    EXPECT_EQ(results[1].pages_freed, results[0].pages_freed);
    EXPECT_EQ(results[1].low_pages, results[0].low_pages);
    EXPECT_EQ(results[1].demoted, results[0].demoted);
    EXPECT_EQ(results[1].dropped, results[0].dropped);
    changed_ += results[0].demoted + results[0].dropped;
    evaluated_ = std::max(evaluated_, one[0].evaluated_after());
    tokens_ -= forgotten;
    section_begin_ = tokens_;
    expect_same_tokens(0, tiers_, tokens_ % kKvGroup);
  }

  KvPolicy policy_;
  KvTiers tiers_;
  int32_t tokens_ = 0;
  int32_t section_begin_ = 0;  // with section_scores: tokens before the section that is filled
  int32_t evaluated_ = 0;
  int64_t changed_ = 0;
};

}  // namespace tessera
