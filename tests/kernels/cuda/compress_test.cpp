#include "tests/kernels/cuda/compressed_arenas.h"

namespace tessera {
namespace {

class CudaCompression : public CompressedArenas {};

// At the prompt's end, and one group later. compress_long_test.cpp has more lengths.
TEST_P(CudaCompression, LeavesWhatTheOracleLeaves) {
  uint32_t seed = 1;
  for (const KvPolicy& policy : policies()) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " rule " << rule_text(policy));
    begin(policy, 16, seed++);
    append(200);
    ASSERT_NO_FATAL_FAILURE(compress(200));
    if (policy.compress_generated) {
      append(56);
      ASSERT_NO_FATAL_FAILURE(compress(200));
    }
  }
  EXPECT_GT(changed_, 1000);
}

TEST_P(CudaCompression, ForgetsReplaysAndSharesTheSectionsBeforeThem) {
  constexpr int32_t kSection = 128;
  KvPolicy policy = replaying();
  policy.section = kSection;
  begin(policy, 16, 400);
  for (int32_t section = 0; section < 2; ++section) {
    append(kSection);
    append(kSection);
    policy_.budget().amount = KvAmount::of_tokens((section + 1) * kSection / 2);
    policy_.sinks = std::max(4, section * kSection);
    policy_.recent = 0;
    evaluated_ = 0;
    ASSERT_NO_FATAL_FAILURE(compress(2 * kSection, kSection));
    const KvShare shares[] = {{0, 0, section * kSection, section, true}};
    both([&](const Backend& backend, KvArena& arena, Stream stream) {
      backend.kv_share({arena.pool(), shares}, stream);
    });
  }
  // A whole block behind rows of different lengths, and a fork that ends with it.
  append(kSection);
  const KvShare behind[] = {{.first = 2 * kSection, .handle = 2, .closed = 3 * kSection}};
  both([&](const Backend& backend, KvArena& arena, Stream stream) {
    backend.kv_share({arena.pool(), behind}, stream);
  });
  append(kKvGroup);
  const KvFork forks[] = {{.from = 0,
                           .to = 2,
                           .tiers = tiers_,
                           .high = 3 * kSection,
                           .closed = 3 * kSection + kKvGroup}};
  both([&](const Backend& backend, KvArena& arena, Stream stream) {
    backend.kv_fork({arena.pool(), forks}, stream);
  });
  resize({0}, {});
  const PrefixBlock all[] = {{0, 0, true}, {1, 0, true}, {2, 0}};
  const KvAttachment of_all[] = {{0, tiers_, all}};
  both([&](const Backend& backend, KvArena& arena, Stream stream) {
    backend.kv_attach({arena.pool(), of_all}, stream);
  });
  for (const int32_t slot : {0, 2}) {
    ASSERT_NO_FATAL_FAILURE(expect_same_tokens(slot, tiers_, 0));
  }
  resize({0, 2}, {});
  const int32_t last[] = {2};
  both([&](const Backend& backend, KvArena& arena, Stream stream) {
    backend.kv_evict({arena.pool(), last}, stream);
  });
  const PrefixBlock sections[] = {{0, 0, true}, {1, 0, true}};
  const KvAttachment attachments[] = {{1, tiers_, sections}};
  both([&](const Backend& backend, KvArena& arena, Stream stream) {
    backend.kv_attach({arena.pool(), attachments}, stream);
  });
  ASSERT_NO_FATAL_FAILURE(expect_same_tokens(1, tiers_, 0));
  const int32_t handles[] = {0, 1};
  resize({1}, {});
  both([&](const Backend& backend, KvArena& arena, Stream stream) {
    backend.kv_evict({arena.pool(), handles}, stream);
  });
  for (const ReachedArena* arena : {expected_.get(), actual_.get()}) {
    EXPECT_EQ((*arena)->free_pages(), shape_.pages);
  }
}

TEST_P(CudaCompression, LeavesPagesAloneThatOthersOwnToo) {
  uint32_t seed = 200;
  for (const KvPolicy& policy : {leankv(), retrieving(), kv_compress()}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    begin(policy, 16, seed++);
    append(150);
    const KvFork forks[] = {{0, 2, tiers_}};
    both([&](const Backend& backend, KvArena& arena, Stream stream) {
      backend.kv_fork({arena.pool(), forks}, stream);
    });
    append(150);
    ASSERT_NO_FATAL_FAILURE(compress(300));
    ASSERT_NO_FATAL_FAILURE(expect_same_tokens(2, tiers_, 150 % kKvGroup));
  }
}

// The snapshot is the same, byte for byte, and can be swapped in to another slot.
TEST_P(CudaCompression, IsSwappedOutAndInUnchanged) {
  uint32_t seed = 300;
  for (KvPolicy policy : {leankv(), all_queries(), mustafar()}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    if (policy.prunes_keys()) {
      policy.key_score = KvKeyScore::output_aware;  // sums of queries are part of the snapshot
    }
    begin(policy, 16, seed++);
    append(300);
    ASSERT_NO_FATAL_FAILURE(compress(300));
    std::vector<std::vector<std::byte>> snapshots;
    both([&](const Backend& backend, KvArena& arena, Stream stream) {
      const int64_t bytes = kv_snapshot_bytes(arena.view(), arena.slot_pages(0), tokens_);
      std::vector<std::byte>& snapshot = snapshots.emplace_back(static_cast<size_t>(bytes));
      backend.kv_swap_out({arena.pool(), {0, tiers_, tokens_}, snapshot}, stream);
    });
    // Slack and unused lanes may differ, and do, because the pages are different ones.
    EXPECT_EQ(snapshots[0].size(), snapshots[1].size());
    resize({0}, {});
    size_t i = 0;
    both([&](const Backend& backend, KvArena& arena, Stream stream) {
      backend.kv_swap_in({arena.pool(), {1, tiers_, tokens_}, snapshots[i++]}, stream);
    });
    ASSERT_NO_FATAL_FAILURE(expect_same_tokens(1, tiers_, tokens_ % kKvGroup));
    i = 0;
    std::vector<std::vector<std::byte>> again(2, std::vector<std::byte>(snapshots[0].size()));
    both([&](const Backend& backend, KvArena& arena, Stream stream) {
      backend.kv_swap_out({arena.pool(), {1, tiers_, tokens_}, again[i++]}, stream);
    });
    EXPECT_EQ(again, snapshots);
  }
}

// Chunks begin and end anywhere; results are equal bit for bit.
TEST_P(CudaCompression, AddsUpQueriesAsTheOracleDoes) {
  begin(mustafar(), 48, 400);
  shape_.query_sums = true;
  make(shape_);
  const int32_t heads = 3 * shape_.kv_heads;
  const int64_t cols = int64_t{heads} * shape_.head_dim;
  const KvScoring scorings[] = {{}, {.query_sums = true}};
  int32_t stored = 0;
  for (const int32_t count : {30, 34, 1, 100, 150, 1, 20}) {
    const SequenceSpan spans[] = {{0, 0, 1, 7, {}}, {1, 1, count, stored, {}}};
    const std::vector<float> queries = random_floats(random_, (1 + count) * cols);
    const std::vector<float> log_sums(static_cast<size_t>((1 + count) * heads));
    both([&](const Backend& backend, KvArena& arena, Stream stream) {
      backend.kv_score({.queries = {queries.data(), 1 + count, cols, cols},
                        .log_sums = {log_sums.data(), 1 + count, heads, heads},
                        .sequences = spans,
                        .scorings = scorings,
                        .pages = arena.view(),
                        .layer = 1,
                        .query_heads = heads,
                        .scale = 1,
                        .dense = {}},
                       stream);
    });
    stored += count;
    const int64_t bytes = shape_.slots * shape_.slot_query_sum_bytes();
    EXPECT_EQ(std::memcmp((*actual_)->view().query_sums, (*expected_)->view().query_sums,
                          static_cast<size_t>(bytes)),
              0)
        << stored << " tokens";
  }
}

TEST_P(CudaCompression, DemotesPrefixBlocksToTheOraclesBytes) {
  struct Demotion {
    KvFormat high;
    KvFormat low;
    std::vector<int32_t> head_dims;
  };
  const Demotion demotions[] = {{kKvK8V4, kKvK4V2, {24, 128}}, {kKvF16, kKvK8V4, {24, 128}},
                                {kKvK4V4, kKvK2V4, {24, 128}}, {kKvF16, kKvS70, {24}},
                                {kKvK8V8, kKvS70K4V4, {40}},   {kKvS50, kKvS70K4V4, {24}},
                                {kKvS50, kKvK4V2, {24}}};
  for (const auto& [high, low, head_dims] : demotions) {
    for (const int32_t head_dim : head_dims) {
      SCOPED_TRACE(testing::Message()
                   << "seed 7 " << name_of(high) << " " << name_of(low) << " " << head_dim);
      KvArenaShape shape{.formats = {high, low},
                         .head_dim = head_dim,
                         .slots = 2,
                         .layers = 2,
                         .kv_heads = 2,
                         .context = 400};
      shape.page_bytes = KvPageLayout::make(high, head_dim, 16).page_bytes;
      int32_t prefix_block = kKvGroup;
      const int32_t capacity = KvPageLayout::fit(low, head_dim, shape.page_bytes).capacity;
      while (prefix_block % capacity != 0) {
        prefix_block += kKvGroup;
      }
      shape.prefix_block_tokens = prefix_block;
      shape.prefix_block_tiers = {0, 1};
      shape.pages = static_cast<int32_t>(shape.rows()) * shape.row_pages() + 100;
      make(shape);
      const KvTiers tiers{0, 1};
      store({{0, 0, prefix_block}}, tiers, {0, 1});
      const KvShare shares[] = {{0, 0, 0, 3}};
      const PrefixBlock prefix_blocks[] = {{3, 0}};
      const PrefixBlock demoted[] = {{3, 1}};
      const KvAttachment attachments[] = {{1, tiers, demoted}};
      both([&](const Backend& backend, KvArena& arena, Stream stream) {
        backend.kv_share({arena.pool(), shares}, stream);
      });
      resize({0}, {});
      both([&](const Backend& backend, KvArena& arena, Stream stream) {
        std::vector<std::byte> scratch(
            static_cast<size_t>(backend.kv_demote_scratch_bytes(arena.view(), stream)) + 64);
        void* aligned = scratch.data();
        size_t space = scratch.size();
        std::align(64, 0, aligned, space);
        backend.kv_demote(
            {arena.pool(), prefix_blocks, 1, {static_cast<std::byte*>(aligned), space}}, stream);
        device().wait(device().stream);
      });
      both([&](const Backend& backend, KvArena& arena, Stream stream) {
        backend.kv_attach({arena.pool(), attachments}, stream);
      });
      ASSERT_NO_FATAL_FAILURE(expect_same_tokens(1, tiers, 0));
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaCompression);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaCompression, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
