// Decode reads the tiles whose key sketches promise the most attention to its queries.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "kernels/cpu/attention/sketch_query.h"
#include "kernels/cpu/pages/key_sketch.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/tiles/sketch_sums.h"
#include "kernels/kv/rotation.h"
#include "kernels/kv/whole_layers.h"
#include "tests/kernels/decoded_sketch.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_sequences.h"

namespace tessera {
namespace {

constexpr int32_t kLayer = kWholeLayers;

struct SelectionShape {
  KvFormat format = kKvK8V4;
  int32_t head_dim = 64;
  int32_t kv_heads = 2;
  int32_t gqa_ratio = 3;
  int32_t tokens = 1310;  // 20 closed groups and an open one
  int32_t page_tokens = 64;
  uint32_t seed = 1;

  std::string text() const {
    return name_of(format) + ", head_dim " + std::to_string(head_dim) + ", pages of " +
           std::to_string(page_tokens) + ", seed " + std::to_string(seed);
  }
};

// Sequences of the first layer that selects. Slot 0 has `tokens` tokens with random keys, of which
// the first channels are large; slot 1 is empty.
class SelectionWorld {
 public:
  SelectionWorld(const SelectionShape& shape, CpuIsa isa, int32_t threads = 1)
      : shape_(shape), pool_(threads), backend_(cpu_backend(isa)), random_(shape.seed) {
    KvArenaShape arena{.formats = {shape.format, kKvK4V2},
                       .head_dim = shape.head_dim,
                       .slots = 2,
                       .layers = kWholeLayers + 1,
                       .kv_heads = shape.kv_heads,
                       .context = shape.tokens + kKvGroup};
    if (shape.format == kKvF32) {
      arena.formats.pop_back();
    }
    if (shape.page_tokens == 64 && arena.formats.size() > 1) {
      arena.prefix_block_tokens = block_tokens();
      arena.prefix_block_tiers = {0, 1};
    }
    arena.page_bytes =
        KvPageLayout::make(shape.format, shape.head_dim, shape.page_tokens).page_bytes;
    int32_t most = 0;
    for (size_t tier = 0; tier < arena.formats.size(); ++tier) {
      most = std::max(most, arena.layout(tier).capacity);
    }
    arena.sketch_bytes = key_sketch_bytes(shape.head_dim, most);
    arena.page_bytes += arena.sketch_bytes;
    arena.pages = 2 * static_cast<int32_t>(arena.rows()) * arena.row_pages();
    arena_ = KvArena::make(arena);
    queries_ = random_floats(random_, int64_t{query_heads()} * shape.head_dim, 2.0f);
    keys_ = random_floats(random_, shape.tokens * kv_cols());
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto channel = static_cast<int32_t>(i) % shape.head_dim;
      keys_[i] = channel < 2 ? keys_[i] * 4 + 9 : keys_[i];
    }
    values_ = random_floats(random_, shape.tokens * kv_cols());
  }

  int32_t block_tokens() const {
    const KvPageLayout low = KvPageLayout::fit(
        kKvK4V2, shape_.head_dim,
        KvPageLayout::make(shape_.format, shape_.head_dim, shape_.page_tokens).page_bytes);
    return std::lcm(std::lcm(kKvGroup, low.capacity), shape_.page_tokens);
  }

  // Stores the tokens of slot 0, in chunks. Earlier layers have as many, all zeros.
  void store(int32_t chunk) {
    for (int32_t at = 0; at < shape_.tokens; at += chunk) {
      const int32_t count = std::min(chunk, shape_.tokens - at);
      store_step(backend_, pool_, *arena_,
                 {{0,
                   at,
                   count,
                   &keys_[static_cast<size_t>(at * kv_cols())],
                   &values_[static_cast<size_t>(at * kv_cols())],
                   {0, 0}}},
                 kLayer);
      const KvPagesView pages = arena_->view();
      const KvRow counts = pages.rows[pages.row_index(0, kLayer, 0)];
      std::fill_n(pages.rows, kLayer * shape_.kv_heads, counts);
    }
  }

  // The last token's attention over the slot's tokens. read_tiles: as in its span.
  std::vector<float> attend(int32_t slot, int32_t tokens, int32_t read_tiles, int32_t prompt = 1,
                            KvTiers tiers = {0, 0}) {
    return attend({{.slot = slot,
                    .count = 1,
                    .context = tokens - 1,
                    .tiers = tiers,
                    .prompt = prompt,
                    .read_tiles = read_tiles}});
  }
  std::vector<float> attend(std::vector<SequenceSpan> spans, int32_t layer = kLayer,
                            std::vector<float>* log_sums = nullptr) {
    const auto rows = static_cast<int32_t>(spans.size());
    std::vector<float> queries;
    for (int32_t i = 0; i < rows; ++i) {
      spans[static_cast<size_t>(i)].first_row = i;
      queries.insert(queries.end(), queries_.begin(), queries_.end());
    }
    const int64_t cols = int64_t{query_heads()} * shape_.head_dim;
    std::vector<float> out(queries.size());
    std::vector<std::byte> scratch(static_cast<size_t>(backend_.attention_scratch_bytes(
        {rows, rows, shape_.tokens, true}, query_heads(), shape_.head_dim)));
    backend_.attention(
        {.queries = {queries.data(), rows, cols, cols},
         .sequences = spans,
         .pages = arena_->view(),
         .layer = layer,
         .query_heads = query_heads(),
         .scale = scale(),
         .dense = {},
         .out = {out.data(), rows, cols, cols},
         .log_sums = log_sums == nullptr
                         ? MatrixView<float>{}
                         : MatrixView<float>{log_sums->data(), rows, query_heads(), query_heads()},
         .scratch = scratch},
        pool_.stream());
    return out;
  }

  // Makes slot 1 a copy of slot 0 that has only the chosen tiles.
  // Requires: pages of 64 tokens.
  void keep_tiles(const std::vector<std::set<int32_t>>& chosen) {
    const KvPool pool = arena_->pool();
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const int64_t from = pool.pages.row_index(0, kLayer, head);
      const int64_t to = pool.pages.row_index(1, kLayer, head);
      int32_t entry = 0;
      for (const int32_t tile : chosen[static_cast<size_t>(head)]) {
        pool.tables[to * pool.pages.row_pages + entry++] = pool.pages.table(from)[tile];
      }
      pool.pages.rows[to] = {entry * kKvGroup, 0};
      std::memcpy(pool.pages.residual(to), pool.pages.residual(from),
                  static_cast<size_t>(pool.pages.residual_layout.page_bytes));
    }
  }

  // Returns: for each KV head, the tiles that the definition chooses by estimates of the scalar
  // kernels.
  std::vector<std::set<int32_t>> chosen(int32_t read_tiles) const {
    const KvPagesView pages = arena_->view();
    std::vector<std::set<int32_t>> all;
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const int64_t row = pages.row_index(0, kLayer, head);
      const int32_t tiles = pages.rows[row].high / kAttentionTile;
      std::vector<std::pair<float, int32_t>> ranked;
      const std::vector<float> ranks = ranks_of_tiles(row, head, tiles);
      for (int32_t tile = 1; tile + 1 < tiles; ++tile) {
        ranked.emplace_back(-ranks[static_cast<size_t>(tile)], tile);
      }
      std::sort(ranked.begin(), ranked.end());
      std::set<int32_t> read{0, tiles - 1};
      for (int32_t i = 0; i < read_tiles - 2; ++i) {
        read.insert(ranked[static_cast<size_t>(i)].second);
      }
      all.push_back(read);
    }
    return all;
  }

  // Checks the sketches of every page of a slot.
  void expect_sketches(int32_t slot, KvTiers tiers) {
    const KvPagesView pages = arena_->view();
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const int64_t row = pages.row_index(slot, kLayer, head);
      for (const bool high : {true, false}) {
        const KvPageLayout& layout = pages.layouts[high ? tiers.high : tiers.low];
        const int32_t tokens = high ? pages.rows[row].high : pages.rows[row].low;
        for (int32_t first = 0; first < tokens; first += layout.capacity) {
          const int32_t entry = first / layout.capacity;
          expect_sketch_of(layout,
                           pages.page(pages.table(row)[high ? entry : pages.row_pages - 1 - entry]),
                           std::min(layout.capacity, tokens - first));
        }
      }
    }
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  int32_t query_heads() const { return shape_.kv_heads * shape_.gqa_ratio; }
  int64_t kv_cols() const { return int64_t{shape_.kv_heads} * shape_.head_dim; }
  const float* query(int32_t head) const {
    return queries_.data() + int64_t{head} * shape_.head_dim;
  }
  float* key(int32_t token, int32_t kv_head) {
    return keys_.data() + token * kv_cols() + int64_t{kv_head} * shape_.head_dim;
  }
  const float* value(int32_t token, int32_t kv_head) const {
    return values_.data() + token * kv_cols() + int64_t{kv_head} * shape_.head_dim;
  }
  KvArena& arena() { return *arena_; }
  const Backend& backend() const { return backend_; }
  Stream stream() { return pool_.stream(); }
  // Returns: the span of the last token of slot 0.
  SequenceSpan last(int32_t read_tiles) const {
    SequenceSpan span;
    span.count = 1;
    span.context = shape_.tokens - 1;
    span.prompt = 1;
    span.read_tiles = read_tiles;
    return span;
  }

 private:
  // Requires: each page is in one tile.
  std::vector<float> ranks_of_tiles(int64_t row, int32_t kv_head, int32_t tiles) const {
    const KvPagesView pages = arena_->view();
    const KvPageLayout& layout = pages.layouts[0];
    const int32_t heads = shape_.gqa_ratio;
    const SketchQueries queries(query(kv_head * heads), heads, shape_.head_dim, scale());
    std::vector<std::vector<float>> estimates(static_cast<size_t>(heads));
    for (int32_t tile = 0; tile < tiles; ++tile) {
      std::vector<float> best(static_cast<size_t>(heads), -1e30f);
      for (int32_t first = tile * kAttentionTile; first < (tile + 1) * kAttentionTile;
           first += layout.capacity) {
        float of_page[SketchQueries::kMaxHeads];
        queries.estimate(layout, pages.page(pages.table(row)[first / layout.capacity]), 0,
                         static_cast<int32_t>(div_ceil(layout.capacity, kSketchTokens)),
                         ScalarSketch::add, of_page);
        for (size_t head = 0; head < best.size(); ++head) {
          best[head] = std::max(best[head], of_page[head]);
        }
      }
      for (size_t head = 0; head < best.size(); ++head) {
        estimates[head].push_back(best[head]);
      }
    }
    std::vector<float> ranks(static_cast<size_t>(tiles), -1e30f);
    for (const std::vector<float>& of_head : estimates) {
      const float best = *std::max_element(of_head.begin(), of_head.end());
      for (size_t tile = 0; tile < ranks.size(); ++tile) {
        ranks[tile] = std::max(ranks[tile], of_head[tile] - best);
      }
    }
    return ranks;
  }

  SelectionShape shape_;
  ThreadPool pool_;
  const Backend& backend_;
  std::mt19937 random_;
  std::unique_ptr<KvArena> arena_;
  std::vector<float> queries_, keys_, values_;
};

class TileSelectionTest : public testing::TestWithParam<CpuIsa> {};

TEST_P(TileSelectionTest, HasSketchesNearTheKeysOfEveryFormat) {
  for (const KvFormat format : named_formats()) {
    for (const int32_t head_dim : {32, 64, 80}) {
      for (const int32_t page_tokens : {64, 48, 128}) {
        SelectionWorld world({.format = format,
                              .head_dim = head_dim,
                              .tokens = 200,
                              .page_tokens = page_tokens,
                              .seed = static_cast<uint32_t>(head_dim + page_tokens)},
                             GetParam());
        world.store(70);
        SCOPED_TRACE(name_of(format) + ", head_dim " + std::to_string(head_dim));
        world.expect_sketches(0, {0, 0});
      }
    }
  }
}

TEST_P(TileSelectionTest, ReadsTheChosenTilesAsIfTheRowHadNoOthers) {
  for (const KvFormat format : {kKvF16, kKvFp8, kKvK8V4, kKvK4V2R, kKvK3V3R, kKvS50K4V4}) {
    for (const int32_t read_tiles : {4, 7, 18}) {
      const SelectionShape shape{.format = format, .seed = 3};
      SelectionWorld world(shape, GetParam());
      world.store(200);
      const std::vector<float> out = world.attend(0, shape.tokens, read_tiles);
      world.keep_tiles(world.chosen(read_tiles));
      EXPECT_EQ(out, world.attend(1, read_tiles * kAttentionTile + shape.tokens % kKvGroup, 0))
          << shape.text() << ", tiles " << read_tiles;
      EXPECT_NE(out, world.attend(0, shape.tokens, 0)) << shape.text();
    }
  }
}

TEST_P(TileSelectionTest, CutIntoSplitsReadsTheSame) {
  const SelectionShape shape{.tokens = 64 * 64 + 9, .seed = 5};
  SelectionWorld world(shape, GetParam(), 4);
  world.store(1000);
  const std::vector<float> out = world.attend(0, shape.tokens, 40);
  world.keep_tiles(world.chosen(40));
  EXPECT_EQ(out, world.attend(1, 40 * kAttentionTile + 9, 0));
}

TEST_P(TileSelectionTest, ReadsEverythingInAPromptAndWhereTilesAreFewerThanTheNumber) {
  const SelectionShape shape{.seed = 6};
  SelectionWorld world(shape, GetParam());
  world.store(200);
  const std::vector<float> all = world.attend(0, shape.tokens, 0);
  EXPECT_EQ(world.attend(0, shape.tokens, 20), all);
  EXPECT_EQ(world.attend(0, shape.tokens, 1000), all);
  EXPECT_EQ(world.attend(0, shape.tokens, 5, /*prompt=*/shape.tokens), all);
  EXPECT_NE(world.attend(0, shape.tokens, 5), all);
}

TEST_P(TileSelectionTest, DoesNotDependOnTheBatch) {
  for (const int32_t page_tokens : {32, 64, 96}) {
    const SelectionShape shape{.page_tokens = page_tokens, .seed = 8};
    SelectionWorld world(shape, GetParam(), 3);
    world.store(300);
    const std::vector<float> alone = world.attend(0, shape.tokens, 6);
    const SequenceSpan all = world.last(0);
    const SequenceSpan few = world.last(6);
    const std::vector<float> together = world.attend({all, few, all, few});
    const auto part = [&](size_t i) {
      return std::vector<float>(together.begin() + static_cast<int64_t>(i * alone.size()),
                                together.begin() + static_cast<int64_t>((i + 1) * alone.size()));
    };
    EXPECT_EQ(part(1), alone) << page_tokens;
    EXPECT_EQ(part(3), alone) << page_tokens;
    EXPECT_EQ(part(0), world.attend(0, shape.tokens, 0)) << page_tokens;
  }
}

TEST_P(TileSelectionTest, FindsAPlantedKeyAnywhere) {
  for (int32_t planted = 3; planted < 1280; planted += 131) {
    const SelectionShape shape{.seed = static_cast<uint32_t>(planted)};
    SelectionWorld world(shape, GetParam());
    const float* query = world.query(1);
    for (int32_t c = 0; c < shape.head_dim; ++c) {
      world.key(planted, 0)[c] = query[c] * 3;
    }
    world.store(400);
    const std::vector<float> out = world.attend(0, shape.tokens, 4);
    const std::vector<float> all = world.attend(0, shape.tokens, 0);
    for (int32_t c = 0; c < shape.head_dim; ++c) {
      const auto at = static_cast<size_t>(shape.head_dim + c);
      EXPECT_NEAR(out[at], all[at], 0.05) << "token " << planted << ", channel " << c;
      EXPECT_NEAR(out[at], world.value(planted, 0)[c], 0.3) << "token " << planted;
    }
  }
}

// A long context of noise, with four keys for each query head that take most of its attention.
TEST_P(TileSelectionTest, FindsTheAttentionOfPlantedKeysAt32ThousandTokens) {
  const SelectionShape shape{.kv_heads = 1, .gqa_ratio = 4, .tokens = 32768 + 7, .seed = 12};
  for (const float strength : {0.75f, 1.5f}) {
    SelectionWorld world(shape, GetParam());
    std::mt19937 random(13);
    for (int32_t i = 0; i < 16; ++i) {
      float* const key = world.key(static_cast<int32_t>(random() % 32768), 0);
      for (int32_t c = 0; c < shape.head_dim; ++c) {
        key[c] = world.query(i % 4)[c] * strength;
      }
    }
    world.store(4096);
    std::vector<float> all(4), read(4);
    world.attend({world.last(0)}, kLayer, &all);
    for (const int32_t part : {4, 8, 16}) {
      world.attend({world.last(512 / part)}, kLayer, &read);
      double found = 0;  // mean over the heads
      for (size_t head = 0; head < 4; ++head) {
        found += std::exp(double{read[head]} - all[head]) / 4;
      }
      EXPECT_GT(found, 0.99) << "1/" << part << ", strength " << strength;
      RecordProperty("found_of_" + std::to_string(strength) + "_in_1_of_" + std::to_string(part),
                     std::to_string(found));
    }
  }
}

TEST_P(TileSelectionTest, ReadsEverythingInTheFirstLayers) {
  const SelectionShape shape{.seed = 14};
  SelectionWorld world(shape, GetParam());
  world.store(200);
  const KvPool pool = world.arena().pool();
  for (int32_t layer = 0; layer < kLayer; ++layer) {  // the same pages in each layer
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      const int64_t from = pool.pages.row_index(0, kLayer, head);
      const int64_t to = pool.pages.row_index(0, layer, head);
      std::copy_n(pool.pages.table(from), pool.pages.row_pages,
                  pool.tables + to * pool.pages.row_pages);
      pool.pages.rows[to] = pool.pages.rows[from];
      std::memcpy(pool.pages.residual(to), pool.pages.residual(from),
                  static_cast<size_t>(pool.pages.residual_layout.page_bytes));
    }
    EXPECT_EQ(world.attend({world.last(5)}, layer), world.attend({world.last(0)})) << layer;
    EXPECT_NE(world.attend({world.last(5)}), world.attend({world.last(0)}));
  }
}

TEST_P(TileSelectionTest, KeepsItsSketchesThroughForksSwapsAndDemotion) {
  const SelectionShape shape{.tokens = 700, .seed = 9};
  SelectionWorld world(shape, GetParam());
  world.store(100);
  const Backend& backend = world.backend();
  KvArena& arena = world.arena();
  const std::vector<float> out = world.attend(0, shape.tokens, 5);

  const KvFork forks[] = {{.from = 0, .to = 1, .tiers = {0, 0}, .high = 1 << 30}};
  backend.kv_fork({arena.pool(), forks}, world.stream());
  world.expect_sketches(1, {0, 0});
  EXPECT_EQ(world.attend(1, shape.tokens, 5), out);

  const auto released = [&](int32_t slot) {
    const int32_t slots[] = {slot};
    backend.kv_resize({arena.pool(), slots, {}}, world.stream());
  };
  const KvSnapshot snapshot{.slot = 0, .tiers = {0, 0}, .tokens = shape.tokens};
  std::vector<std::byte> bytes(1 << 20);
  backend.kv_swap_out({arena.pool(), snapshot, bytes}, world.stream());
  released(0);
  released(1);
  backend.kv_swap_in({arena.pool(), snapshot, bytes}, world.stream());
  world.expect_sketches(0, {0, 0});
  EXPECT_EQ(world.attend(0, shape.tokens, 5), out);

  std::vector<KvShare> shares;
  std::vector<PrefixBlock> blocks;
  for (int32_t i = 0; (i + 1) * world.block_tokens() <= shape.tokens; ++i) {
    shares.push_back({0, 0, i * world.block_tokens(), i});
    blocks.push_back({i, 0});
  }
  ASSERT_FALSE(blocks.empty());
  backend.kv_share({arena.pool(), shares}, world.stream());
  released(0);
  std::vector<std::byte> scratch(
      static_cast<size_t>(backend.kv_demote_scratch_bytes(arena.view(), world.stream())));
  backend.kv_demote({arena.pool(), blocks, 1, scratch}, world.stream());
  for (PrefixBlock& block : blocks) {
    block.tier = 1;
  }
  const KvAttachment attachments[] = {{0, {0, 1}, blocks}};
  backend.kv_attach({arena.pool(), attachments}, world.stream());
  ASSERT_GT(arena.view().rows[0].low, 0);
  world.expect_sketches(0, {0, 1});
}

TEST_P(TileSelectionTest, WritesTheSameSketchesForAnyChunks) {
  const SelectionShape shape{.tokens = 300, .page_tokens = 96, .seed = 10};
  const auto sketches = [&](int32_t chunk) {
    SelectionWorld world(shape, GetParam());
    world.store(chunk);
    const KvPagesView pages = world.arena().view();
    std::vector<std::byte> all;
    for (int32_t entry = 0; entry < 3; ++entry) {
      const int64_t row = pages.row_index(0, kLayer, 1);
      const KvPageLayout& layout = pages.layouts[0];
      const std::byte* sketch = key_sketch(layout, pages.page(pages.table(row)[entry]));
      all.insert(all.end(), sketch,
                 sketch + KeySketchLayout{layout.head_dim, layout.capacity}.bytes());
    }
    return all;
  };
  const std::vector<std::byte> whole = sketches(300);
  for (const int32_t chunk : {1, 64, 100}) {
    EXPECT_EQ(sketches(chunk), whole) << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, TileSelectionTest, testing::ValuesIn(isas_of_attention()),
                         [](const auto& isa) { return std::string(name(isa.param)); });

}  // namespace
}  // namespace tessera
