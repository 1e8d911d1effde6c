#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/tiles/pair_block.h"
#include "kernels/kv/kv_page.h"
#include "kernels/matrix/half.h"
#include "tests/kernels/isas.h"

namespace tessera {
namespace {

constexpr int32_t kTiles = 3;

// Pages of random codes, as attention tiles.
struct Tokens {
  Tokens(KvFormat format, int32_t head_dim, std::mt19937& random)
      : layout(KvPageLayout::make(format, head_dim, kTiles * kAttentionTile)),
        shape(layout),
        page(std::make_unique<Page[]>(static_cast<size_t>(layout.page_bytes / 128))) {
    auto* bytes = reinterpret_cast<std::byte*>(page.get());
    for (int64_t i = 0; i < layout.page_bytes; ++i) {
      bytes[i] = static_cast<std::byte>(random());
    }
    const int64_t key_tiles = layout.capacity / KvPageLayout::kKeyTile;
    fill(random, bytes + layout.key_scales_offset(0), bytes + layout.values_offset(0));
    fill(random, bytes + layout.value_scales_offset(0),
         bytes + layout.value_zeros_offset(key_tiles));
    for (int32_t i = 0; i < kTiles; ++i) {
      tiles[i].shape = &shape;
      for (int32_t j = 0; j < kKeyTilesInTile; ++j) {
        const int64_t at = i * kKeyTilesInTile + j;
        tiles[i].keys[j] = bytes + layout.keys_offset(at);
        tiles[i].values[j] = bytes + layout.values_offset(at);
        tiles[i].scales[j] = bytes + layout.key_scales_offset(at);
      }
    }
  }

  KvPageLayout layout;
  TileShape shape;
  struct alignas(128) Page {
    std::byte bytes[128];
  };
  std::unique_ptr<Page[]> page;
  KvTile tiles[kTiles];

 private:
  static void fill(std::mt19937& random, std::byte* begin, std::byte* end) {
    for (auto* at = reinterpret_cast<f16*>(begin); at != reinterpret_cast<f16*>(end); ++at) {
      *at = to_f16(std::uniform_real_distribution<float>(-0.1f, 0.1f)(random));
    }
  }
};

// Tokens of each tile that every pair sees.
struct Sight {
  int32_t begin = 0;
  int32_t end = kAttentionTile;
  bool whole = true;
};

// Returns: bits of the softmax state of a split, and of the weights that kv_score would get.
std::vector<uint32_t> attend(const AttentionKernels& kernels, const Tokens& tokens, int32_t pairs,
                             Sight sight, uint32_t seed) {
  std::mt19937 random(seed);
  const int32_t head_dim = tokens.layout.head_dim;
  const auto block = std::make_unique<PairBlock>();
  block->head_dim = head_dim;
  block->pairs = pairs;
  std::fill_n(block->maxima, PairBlock::kPairs, PairBlock::kLowest);
  std::fill_n(block->sums, pairs * KvPageLayout::kKeyTile, 0.0f);
  std::fill_n(block->zeros, pairs * KvPageLayout::kKeyTile, 0.0f);
  std::fill_n(block->values, pairs * head_dim, 0.0f);
  for (int32_t pair = 0; pair < pairs; ++pair) {
    kernels.load_query_codes(*block, pair, random_floats(random, head_dim, 2.0f).data(), 0.1f);
    const int32_t last = static_cast<int32_t>(random() % 64);
    block->visible[pair] = sight.whole ? ~uint64_t{0} : ~uint64_t{0} >> (63 - last) << sight.begin;
  }
  std::vector<float> left(static_cast<size_t>(attention_weight_tile_floats(pairs)));
  kernels.begin_tiles(*block);
  for (int32_t i = 0; i < kTiles; ++i) {
    const KvTile* next = i + 1 < kTiles ? &tokens.tiles[i + 1] : nullptr;
    kernels.add_tile(*block, {tokens.tiles[i], next, sight.begin, sight.end, sight.whole,
                              seed % 2 == 0 ? left.data() : nullptr});
  }
  kernels.end_tiles(*block);
  std::vector<uint32_t> bits;
  const auto take = [&](const float* floats, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      bits.push_back(std::bit_cast<uint32_t>(floats[i]));
    }
  };
  take(block->maxima, pairs);
  take(block->sums, pairs * KvPageLayout::kKeyTile);
  take(block->zeros, pairs * KvPageLayout::kKeyTile);
  take(block->values, int64_t{pairs} * head_dim);
  take(left.data(), int64_t{pairs} * kAttentionTile + pairs);
  return bits;
}

class AmxAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (!cpu_supports(CpuIsa::amx)) {
      GTEST_SKIP() << "this machine has no AMX, or its system does not let us use it";
    }
  }
  static void expect_same_bits(KvFormat format, int32_t head_dim, int32_t pairs, Sight sight,
                               uint32_t seed) {
    SCOPED_TRACE(testing::Message() << "k" << int{format.key_bits} << "v" << int{format.value_bits}
                                    << " head_dim " << head_dim << " pairs " << pairs << " tokens "
                                    << sight.begin << " to " << sight.end << " seed " << seed);
    std::mt19937 random(seed);
    const Tokens tokens(format, head_dim, random);
    ASSERT_EQ(attend(avx512::kAttentionKernels, tokens, pairs, sight, seed),
              attend(amx::attention_kernels(), tokens, pairs, sight, seed));
  }
};

constexpr KvFormat kFormats[] = {kKvK8V8, kKvK8V4, kKvK4V4,        kKvK4V2,  kKvK4V1,
                                 kKvK2V4, kKvK4V8, KvFormat{2, 1}, kKvK3V3R, kKvK6V4R};

TEST_F(AmxAttention, HasTheBitsOfVectorsForEveryFormatHeadDimAndNumberOfPairs) {
  uint32_t seed = 1;
  for (const KvFormat format : kFormats) {
    for (const int32_t head_dim : {8, 16, 24, 56, 64, 72, 128, 136, 248, 256}) {
      for (const int32_t pairs : {1, 7, 8, 9, 15, 16, 17, 47, PairBlock::kPairs}) {
        expect_same_bits(format, head_dim, pairs, {}, seed++);
      }
    }
  }
}

TEST_F(AmxAttention, HasTheBitsOfVectorsWhereAPairSeesAPartOfATile) {
  uint32_t seed = 1000;
  for (const KvFormat format : kFormats) {
    for (const Sight sight : {Sight{0, 1, false}, Sight{0, 64, false}, Sight{63, 64, false},
                              Sight{5, 37, false}, Sight{16, 48, false}}) {
      expect_same_bits(format, 80, 24, sight, seed++);
    }
  }
}

TEST_F(AmxAttention, HasTheBitsOfVectorsForRandomSizes) {
  for (uint32_t seed = 2000; seed < 2200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t end) { return static_cast<int32_t>(random() % end); };
    const int32_t begin = below(64);
    const Sight some{begin, begin + 1 + below(static_cast<uint32_t>(64 - begin)), false};
    const KvFormat format = kFormats[random() % std::size(kFormats)];
    const int32_t head_dim = 8 * (1 + below(32));
    expect_same_bits(format, head_dim, 1 + below(PairBlock::kPairs),
                     random() % 2 == 0 ? Sight{} : some, seed);
  }
}

}  // namespace
}  // namespace tessera
