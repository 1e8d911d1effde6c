#include "engine/kv/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "engine/kv/kv_presets.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "tests/engine/kv_memory.h"
#include "tests/engine/kv_named.h"
#include "tests/kernels/head_profiles.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

KvCacheOptions small_options() {
  return {.preset = kKvPresetF16,
          .layers = 3,
          .kv_heads = 2,
          .head_dim = 8,
          .slots = 5,
          .context = 500,
          .bytes = 0};
}
constexpr int32_t kHeads = 6;
// pages of 64 tokens; the other 52 tokens are in the residual buffer
constexpr int32_t kContextPages = 7 * kHeads;

class KvCacheTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<KvCache>> make(const KvCacheOptions& options) {
    return KvCache::create(options, cpu_backend(CpuIsa::scalar), threads_.stream());
  }
  // Reserves pages and counts closed groups, as kv_store does.
  static void grow(KvCache& kv, const KvSlot& slot, int32_t tokens) {
    const KvReservation wanted[] = {{slot, tokens}};
    kv.reserve(wanted);
    const KvPagesView pages = kv.view();
    const int64_t first = int64_t{slot.index()} * kHeads;
    for (int64_t row = first; row < first + kHeads; ++row) {
      pages.rows[row].high = tokens / kKvGroup * kKvGroup;
    }
  }

  ThreadPool threads_{1};
};

TEST_F(KvCacheTest, HoldsWholeContextsForAllSlotsByDefault) {
  const auto kv = make(small_options());
  ASSERT_TRUE(kv.ok()) << kv.status();
  EXPECT_EQ((*kv)->accounting().pages_total(), 5 * kContextPages);
  EXPECT_EQ((*kv)->planning().token_capacity(), 5 * 7 * 64);
  EXPECT_EQ((*kv)->accounting().free_pages(), 5 * kContextPages);
  EXPECT_EQ((*kv)->planning().budget().pages_for(63), 0);
  EXPECT_EQ((*kv)->planning().budget().pages_for(64), kHeads);
  EXPECT_EQ((*kv)->planning().budget().pages_for(127), kHeads);
}

TEST(KvDemand, CountsWholeGroupsInPagesOfAnySize) {
  for (const int32_t page_tokens : {16, 48, 64, 80, 128}) {
    const KvBudget budget{0, 3, page_tokens};
    for (const int32_t stored : {0, 1, 63, 64, 100, 640}) {
      const KvDemand demand{.heads = 3, .page_tokens = page_tokens};
      for (int64_t pages = 0; pages < 60; ++pages) {
        const int32_t max = demand.tokens_within(pages, stored, 5000);
        EXPECT_LE(budget.pages_for(stored + max) - budget.pages_for(stored), pages);
        EXPECT_GT(budget.pages_for(stored + max + 1) - budget.pages_for(stored), pages);
      }
    }
  }
}

TEST(KvDemand, CountsTheSectionsAmongTheTokensAlone) {
  const KvDemand demand{
      .heads = 4, .page_tokens = 64, .sections = {.tokens = 256, .pages = 12, .compressed = 512}};
  EXPECT_EQ(demand.full_pages(0), 0);
  EXPECT_EQ(demand.pages_for(0), 0);
  EXPECT_EQ(demand.full_pages(256), 12);
  EXPECT_EQ(demand.full_pages(512), 24);
  EXPECT_EQ(demand.pages_for(512 + 64 + 63), 24 + 4);
}

TEST(KvDemand, WantsAPageForEachHeadWhereCompressionRuns) {
  const KvDemand demand{.heads = 3, .page_tokens = 64, .compresses = true, .prompt_tokens = 100};
  EXPECT_EQ(demand.growth(0, 63), 0);
  EXPECT_EQ(demand.growth(0, 99), 3);   // a group closes
  EXPECT_EQ(demand.growth(0, 100), 6);  // and the prompt ends
  EXPECT_EQ(demand.growth(64, 36), 3);
  EXPECT_EQ(demand.growth(100, 1), 0);
  EXPECT_EQ(demand.growth(127, 1), 6);
  EXPECT_EQ(demand.tokens_within(2, 64, 36), 35);
  EXPECT_EQ(demand.tokens_within(3, 64, 36), 36);
}

TEST(KvDemand, WantsTheSameInTheStepAfterAHandover) {
  const KvDemand demand{
      .heads = 3, .page_tokens = 64, .compresses = true, .handed_over = true, .prompt_tokens = 100};
  EXPECT_EQ(demand.growth(0, 63), 0) << "nothing is compressed before the prompt ends";
  EXPECT_EQ(demand.growth(100, 1), 3);
  EXPECT_EQ(demand.growth(127, 1), 6);
  EXPECT_EQ(demand.tokens_within(2, 100, 5), 0);
}

TEST_F(KvCacheTest, CountsEverythingAsItsMemory) {
  const auto kv = std::move(make(small_options())).value();
  const KvArenaShape& shape = kv->shape();
  EXPECT_EQ(shape.slot_residual_bytes(), kHeads * 64 * 8 * 4);
  EXPECT_EQ(shape.slot_table_bytes(), kHeads * (7 * 4 + 8));
  KvCacheOptions options = small_options();
  options.bytes = shape.total_bytes();
  EXPECT_EQ((*make(options))->accounting().pages_total(), kv->accounting().pages_total());
  options.bytes -= 1;
  EXPECT_EQ((*make(options))->accounting().pages_total(), kv->accounting().pages_total() - 1);
}

TEST_F(KvCacheTest, RefusesMemoryForLessThanOneContextWithTheNumbers) {
  KvCacheOptions options = small_options();
  options.bytes = kv_memory(options, 7) - 1;
  const auto refused = make(options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              testing::AllOf(HasSubstr("holds 41 pages"), HasSubstr("needs 42 pages"),
                             HasSubstr(std::to_string(options.bytes + 1))));
  options.bytes += 1;
  EXPECT_TRUE(make(options).ok());
  options.bytes = 1;
  EXPECT_THAT(std::string(make(options).status().message()), HasSubstr("holds 0 pages"));
}

TEST_F(KvCacheTest, RefusesMorePagesThanPageIdsCanName) {
  KvCacheOptions options = small_options();
  options.bytes = int64_t{1} << 50;
  EXPECT_EQ(make(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(KvCacheTest, RefusesToRotateSmallBlocks) {
  KvCacheOptions options = small_options();
  options.preset = *find_kv_preset("k4v2r");
  for (const int32_t head_dim : {64, 80, 96, 128}) {
    options.head_dim = head_dim;
    EXPECT_TRUE(make(options).ok()) << head_dim;
  }
  options.head_dim = 72;
  EXPECT_EQ(
      make(options).status().message(),
      "KV cache: k4v2r rotates blocks of at least 16 channels, and a head dimension of 72 has "
      "blocks of 8");
}

TEST_F(KvCacheTest, RefusesToPruneKeysByQueriesThatWereNotSummed) {
  KvCacheOptions options = small_options();
  options.head_dim = 64;
  options.also = {*find_kv_preset("s70"), kv_named(kAllQueries)};
  KvPolicy policy = find_kv_preset("mustafar-70")->policy;
  policy.key_score = KvKeyScore::output_aware;
  EXPECT_THAT(std::string((*make(options))->check(policy).message()), HasSubstr("key_score"));
  policy.key_score = KvKeyScore::magnitude;
  EXPECT_TRUE((*make(options))->check(policy).ok());
  policy.key_score = KvKeyScore::output_aware;
  options.also.push_back(*find_kv_preset("mustafar-70"));
  EXPECT_TRUE((*make(options))->check(policy).ok()) << "a preset that prunes keys keeps them";
}

TEST_F(KvCacheTest, RefusesDenseNewestTokensOfAModelWithoutAWholeLayer) {
  KvCacheOptions options = small_options();
  options.head_dim = 64;
  options.windows.assign(static_cast<size_t>(options.layers), 100);
  options.preset = *find_kv_preset("s50");
  EXPECT_THAT(std::string(make(options).status().message()),
              testing::AllOf(HasSubstr("newest 32"), HasSubstr("sliding-window")));
  options.windows.front() = 0;
  EXPECT_TRUE(make(options).ok()) << make(options).status();
  options.policies_beside_windows = false;
  EXPECT_THAT(std::string(make(options).status().message()), HasSubstr("this backend"));
  options.preset.policy.all().newest = 0;
  EXPECT_TRUE(make(options).ok()) << make(options).status();
}

TEST_F(KvCacheTest, RefusesBudgetsByTheProfileOfAModelWithoutOne) {
  KvCacheOptions options = small_options();
  const KvPolicy policy = kv_named("retrieval-50:high=f16:low=f16").policy;
  options.also = {kv_named(kAllQueries)};
  EXPECT_THAT(std::string((*make(options))->check(policy).message()),
              testing::AllOf(HasSubstr("the allocator retrieval needs a profile"),
                             HasSubstr("tessera-eval --profile")));
  options.head_profiles = uneven_head_profiles(kHeads);
  EXPECT_TRUE((*make(options))->check(policy).ok());
}

TEST_F(KvCacheTest, RefusesToSelectTilesWithoutSketchesInThePages) {
  KvCacheOptions options = small_options();
  options.head_dim = 64;
  const KvPolicy quest = find_kv_preset("k8v4-quest")->policy;
  options.preset = *find_kv_preset("k8v4");
  const int64_t without = (*make(options))->shape().page_bytes;
  EXPECT_THAT(std::string((*make(options))->check(quest).message()),
              testing::AllOf(HasSubstr("read_share 0.25"), HasSubstr("sketches of keys")));
  options.also = {*find_kv_preset("k8v4-quest")};
  EXPECT_TRUE((*make(options))->check(quest).ok());
  EXPECT_EQ((*make(options))->shape().page_bytes, without + 64 + 64 + 1024)
      << "a mean, scales, codes of 2 bits";
  EXPECT_EQ((*make(options))->planning().budget().page_tokens, kKvGroup);
  options.windows.assign(static_cast<size_t>(options.layers), 100);
  EXPECT_THAT(std::string(make(options).status().message()),
              testing::AllOf(HasSubstr("read_share 0.25"), HasSubstr("sliding-window")));
  options.windows.front() = 0;
  EXPECT_TRUE(make(options).ok()) << make(options).status();
  options.windows.clear();
  options.head_dim = 8;
  EXPECT_THAT(std::string(make(options).status().message()), HasSubstr("at least 32 channels"));
}

TEST_F(KvCacheTest, RefusesToSelectTilesOnABackendThatReadsAll) {
  KvCacheOptions options = small_options();
  options.head_dim = 64;
  options.preset = *find_kv_preset("k8v4-quest");
  Backend backend = cpu_backend(CpuIsa::scalar);
  backend.name = "other";
  backend.selects_tiles = false;
  const auto refused = KvCache::create(options, backend, threads_.stream());
  EXPECT_THAT(std::string(refused.status().message()),
              testing::AllOf(HasSubstr("other"), HasSubstr("read_share must be 1")));
}

// A group of floats or of a sparse format closes from floats.
TEST_F(KvCacheTest, RefusesCodedResidualBuffersBesideAFormatThatIsNotOfCodes) {
  KvCacheOptions options = small_options();
  options.coded_residuals = true;
  options.preset = *find_kv_preset("k8v4");
  EXPECT_TRUE(make(options).ok()) << make(options).status();
  for (const char* const other : {"f16", "fp8", "s50"}) {
    options.also = {*find_kv_preset(other)};
    EXPECT_THAT(std::string(make(options).status().message()),
                testing::AllOf(HasSubstr("residual buffers of 8 bits"), HasSubstr(other)));
  }
  options.also = {};
  options.prefix_cache = true;
  options.ladder = {kKvS50};
  EXPECT_THAT(std::string(make(options).status().message()), HasSubstr("the ladder has s50"));
}

TEST_F(KvCacheTest, RefusesCodedResidualBuffersOnABackendWithoutThem) {
  KvCacheOptions options = small_options();
  options.coded_residuals = true;
  options.preset = *find_kv_preset("k8v4");
  Backend backend = cpu_backend(CpuIsa::scalar);
  backend.name = "other";
  backend.coded_residuals = false;
  const auto refused = KvCache::create(options, backend, threads_.stream());
  EXPECT_EQ(refused.status().message(),
            "KV cache: the backend other has residual buffers of 16 bits only");
}

TEST_F(KvCacheTest, KeepsEveryFormatInPagesOfAGroup) {
  for (const char* const name :
       {"f32", "f16", "fp8", "k8v8", "k8v4", "k4v4", "k4v2", "k6v4r", "k4v4r", "k4v2r", "k4v3r",
        "k3v3r", "k3v2r", "s50", "s70", "s50-k4v4", "s70-k4v4", "k8v4-quest"}) {
    const KvPreset preset = *find_kv_preset(name);
    KvCacheOptions options = small_options();
    options.preset = preset;
    options.head_dim = 64;
    const auto kv = make(options);
    ASSERT_TRUE(kv.ok()) << preset.name << kv.status();
    EXPECT_EQ((*kv)->planning().budget().page_tokens, kKvGroup) << preset.name;
    EXPECT_EQ((*kv)->view().layouts[0].format, preset.policy.high);
  }
}

TEST_F(KvCacheTest, GivesPagesWhenGroupsCloseAndTakesThemBack) {
  const auto kv = std::move(make(small_options())).value();
  KvSlot slot = kv->open_slot();
  grow(*kv, slot, 63);
  EXPECT_EQ(kv->accounting().slot_pages(slot), 0);
  grow(*kv, slot, 64);
  EXPECT_EQ(kv->accounting().slot_pages(slot), kHeads);
  grow(*kv, slot, 200);
  kv->check_integrity();
  EXPECT_EQ(kv->accounting().slot_pages(slot), 3 * kHeads);
  EXPECT_EQ(kv->accounting().slot_bytes(slot),
            3 * kHeads * kv->shape().page_bytes + kv->shape().slot_bytes());
  const KvPagesView view = kv->view();
  std::set<int32_t> pages;
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t head = 0; head < 2; ++head) {
      const int32_t* table = view.table(view.row_index(slot.index(), layer, head));
      pages.insert(table, table + 3);
      EXPECT_EQ(table[3], kNoPage);
    }
  }
  EXPECT_EQ(pages.size(), 18);
  EXPECT_FALSE(pages.contains(kNoPage));
  kv->release(std::move(slot));
  kv->check_integrity();
  EXPECT_EQ(kv->accounting().free_pages(), kv->accounting().pages_total());
}

TEST_F(KvCacheTest, KeepsAPageWhereItIsWhenTheSequenceGrows) {
  const auto kv = std::move(make(small_options())).value();
  KvSlot slot = kv->open_slot();
  grow(*kv, slot, 128);
  const KvPagesView view = kv->view();
  const int32_t* table = view.table(view.row_index(slot.index(), 2, 1));
  const int32_t before[] = {table[0], table[1]};
  grow(*kv, slot, 500);
  EXPECT_EQ(table[0], before[0]);
  EXPECT_EQ(table[1], before[1]);
}

// Bytes cover pages with slack and unused ends, tables, and the f16 residual buffer. They are a
// share of dense f16, which needs the same tables. The paper reports 65 % and 45 % for its two
// sparsities.
TEST_F(KvCacheTest, HoldsALongContextInSoFewBytesWhereItIsSparse) {
  struct {
    std::string_view preset;
    double max;  // share of dense f16
  } const bounds[] = {{"s50", 0.59}, {"s70", 0.39}, {"s70-k4v4", 0.18}};
  for (const auto& bound : bounds) {
    KvCacheOptions options = small_options();
    options.preset = *find_kv_preset(bound.preset);
    options.head_dim = 128;
    options.slots = 1;
    options.context = 8192;
    const auto kv = std::move(make(options)).value();
    KvSlot slot = kv->open_slot();
    grow(*kv, slot, options.context);
    const double dense = double{kHeads} * options.context * 2 * 128 * sizeof(f16);
    const double share = static_cast<double>(kv->accounting().slot_bytes(slot)) / dense;
    EXPECT_LE(share, bound.max) << bound.preset;
    RecordProperty(std::string(bound.preset), std::to_string(share));
  }
}

TEST_F(KvCacheTest, CountsASharedPageOnce) {
  const auto kv = std::move(make(small_options())).value();
  KvSlot source = kv->open_slot();
  grow(*kv, source, 150);
  KvSlot first = kv->open_slot();
  KvSlot second = kv->open_slot();
  const KvCopy copies[] = {{source, first, 150}, {source, second, 140}};
  kv->fork(copies);
  kv->check_integrity();
  EXPECT_EQ(kv->accounting().free_pages(), kv->accounting().pages_total() - 2 * kHeads)
      << "whole groups are whole pages";
  EXPECT_EQ(kv->accounting().slot_pages(first), 2 * kHeads);
  grow(*kv, second, 192);
  EXPECT_EQ(kv->accounting().slot_bytes(second),
            3 * kHeads * kv->shape().page_bytes + kv->shape().slot_bytes());
  kv->release(std::move(source));
  kv->check_integrity();
  EXPECT_EQ(kv->accounting().free_pages(), kv->accounting().pages_total() - 3 * kHeads)
      << "two pages stay with the forks";
  kv->release(std::move(first));
  kv->release(std::move(second));
  kv->check_integrity();
  EXPECT_EQ(kv->accounting().free_pages(), kv->accounting().pages_total());
}

TEST_F(KvCacheTest, ForksWholeGroupsOfASequenceThatHasGoneOn) {
  const auto kv = std::move(make(small_options())).value();
  const KvSlot source = kv->open_slot();
  const KvSlot first = kv->open_slot();
  const KvSlot second = kv->open_slot();
  grow(*kv, source, 300);
  const KvCopy copies[] = {{source, first, 128}, {source, second, 0}};
  kv->fork(copies);
  kv->check_integrity();
  EXPECT_EQ(kv->accounting().slot_pages(first), 2 * kHeads);
  EXPECT_EQ(kv->accounting().slot_pages(second), 0);
  grow(*kv, first, 200);
  grow(*kv, second, 70);
  kv->check_integrity();
}

TEST_F(KvCacheTest, AbortsOnForksThatOnlyABugCanAsk) {
  const auto kv = std::move(make(small_options())).value();
  const KvSlot source = kv->open_slot();
  const KvSlot target = kv->open_slot();
  grow(*kv, source, 150);
  const KvCopy too_long[] = {{source, target, 151}};
  EXPECT_DEATH(kv->fork(too_long), "more tokens than there are");
  const KvCopy closed[] = {{source, target, 100}};
  EXPECT_DEATH(kv->fork(closed), "open group that has closed");
  const KvCopy whole[] = {{source, target, 128}};
  kv->fork(whole);
  EXPECT_DEATH(kv->fork(whole), "holds something");
}

TEST_F(KvCacheTest, AbortsOnWhatOnlyABugCanAsk) {
  KvCacheOptions options = small_options();
  options.bytes = kv_memory(options, 7);
  const auto kv = std::move(make(options)).value();
  const KvSlot slot = kv->open_slot();
  KvSlot other = kv->open_slot();
  grow(*kv, slot, 500);
  grow(*kv, other, 63);
  EXPECT_DEATH(grow(*kv, other, 64), "more pages are taken than are free");
  EXPECT_DEATH(grow(*kv, slot, 501), "exceeds the context");
  EXPECT_DEATH(grow(*kv, slot, 499), "shrinks");
  kv->release(std::move(other));
  EXPECT_DEATH(grow(*kv, other, 64), "slot is released");  // NOLINT(bugprone-use-after-move)
  const auto another = std::move(make(options)).value();
  EXPECT_DEATH(grow(*another, slot, 500), "the slot is closed");
}

TEST_F(KvCacheTest, ReleasesASlotWithItsOwner) {
  const auto kv = std::move(make(small_options())).value();
  {
    const KvSlot slot = kv->open_slot();
    grow(*kv, slot, 200);
    EXPECT_EQ(kv->accounting().free_pages(), kv->accounting().pages_total() - 3 * kHeads);
  }
  kv->check_integrity();
  EXPECT_EQ(kv->accounting().free_pages(), kv->accounting().pages_total());
  std::vector<KvSlot> all;
  for (int32_t i = 0; i < small_options().slots; ++i) {
    all.push_back(kv->open_slot());
    grow(*kv, all.back(), 100);
  }
  all.front() = std::move(all.back());
  all.pop_back();
  EXPECT_EQ(kv->accounting().free_pages(), kv->accounting().pages_total() - 4 * kHeads)
      << "assignment releases the old one";
  kv->release(all);
  EXPECT_TRUE(all.empty());
  EXPECT_EQ(kv->accounting().free_pages(), kv->accounting().pages_total());
}

TEST_F(KvCacheTest, AbortsIfASlotOutlivesIt) {
  auto kv = std::move(make(small_options())).value();
  const KvSlot slot = kv->open_slot();
  EXPECT_DEATH(kv.reset(), "outlives its cache");
}

TEST_F(KvCacheTest, AccountsForEveryPageUnderRandomUse) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](int32_t low, int32_t high) {
      return std::uniform_int_distribution<int32_t>(low, high)(random);
    };
    KvCacheOptions options = small_options();
    const char* const formats[] = {"f32", "f16", "fp8", "k8v8", "k8v4", "k4v4"};
    options.preset = *find_kv_preset(formats[pick(0, 5)]);
    options.bytes = kv_memory(options, pick(7, 25));
    const auto kv = std::move(make(options)).value();
    struct Open {
      KvSlot slot;
      int32_t tokens;
    };
    std::vector<Open> open;
    for (int step = 0; step < 500; ++step) {
      const auto closed = [&] { return options.slots - std::ssize(open); };
      if (pick(0, 2) == 0 && closed() > 0) {
        open.push_back({kv->open_slot(), 0});
      }
      if (pick(0, 5) == 0 && closed() > 0 && !open.empty()) {
        const auto i = static_cast<size_t>(pick(0, static_cast<int32_t>(open.size()) - 1));
        const int32_t groups = open[i].tokens / kKvGroup;
        const int32_t tokens = pick(0, 1) == 0 ? open[i].tokens : pick(0, groups) * kKvGroup;
        KvSlot target = kv->open_slot();
        const KvCopy copies[] = {{open[i].slot, target, tokens}};
        kv->fork(copies);
        open.push_back({std::move(target), tokens});
      }
      for (Open& sequence : open) {
        const int32_t tokens = std::min(options.context, sequence.tokens + pick(0, 150));
        const int64_t free = kv->accounting().free_pages();
        const int64_t growth = kv->planning().budget().pages_for(tokens) -
                               kv->planning().budget().pages_for(sequence.tokens);
        if (growth <= free) {
          grow(*kv, sequence.slot, tokens);
          sequence.tokens = tokens;
          ASSERT_EQ(kv->accounting().free_pages(), free - growth);
        }
      }
      kv->check_integrity();
      std::erase_if(open, [&](Open& sequence) {
        const bool closes = pick(0, 9) == 0;
        if (closes) {
          kv->release(std::move(sequence.slot));
        }
        return closes;
      });
      kv->check_integrity();
    }
    for (Open& sequence : open) {
      kv->release(std::move(sequence.slot));
    }
    EXPECT_EQ(kv->accounting().free_pages(), kv->accounting().pages_total());
  }
}

}  // namespace
}  // namespace tessera
