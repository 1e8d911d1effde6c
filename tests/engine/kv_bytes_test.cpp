// Bytes of a sequence of 8192 tokens, measured after a model with heads of 128 has stored it. They
// cover pages with scales and slack, the residual buffer and tables. Token scores are added if a
// scoring policy is served too.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/transformer.h"
#include "models/weights/random_checkpoint.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

constexpr int32_t kTokens = 8192;
constexpr int32_t kChunk = 1024;

class KvBytes : public testing::Test {
 protected:
  void SetUp() override {
    config_.architecture = "LlamaForCausalLM";
    config_.vocab = 97;
    config_.hidden = 32;
    config_.layers = 1;
    config_.heads = 1;
    config_.kv_heads = 1;
    config_.head_dim = 128;
    config_.ffn = 48;
    config_.context = kTokens;
    config_.eos_ids = {2};
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), config_, 5).ok());
  }

  // Returns: the usage of one sequence in that format.
  KvUsage stored(const char* preset, const std::vector<KvPreset>& also) {
    const Backend& backend = cpu_backend(best_cpu_isa());
    auto model = Transformer::load(directory_.path(), {.limits = {kChunk, 1, kTokens}}, backend,
                                   threads_.stream());
    EXPECT_TRUE(model.ok()) << model.status();
    auto kv = KvCache::create({.preset = *find_kv_preset(preset),
                               .also = also,
                               .layers = config_.layers,
                               .kv_heads = config_.kv_heads,
                               .head_dim = config_.head_dim,
                               .query_heads = config_.heads,
                               .slots = 1,
                               .context = kTokens},
                              backend, threads_.stream());
    EXPECT_TRUE(kv.ok()) << kv.status();
    const KvSlot slot = (*kv)->open_slot();
    std::vector<int32_t> tokens(kChunk);
    std::vector<int32_t> positions(kChunk);
    for (int32_t at = 0; at < kTokens; at += kChunk) {
      for (int32_t i = 0; i < kChunk; ++i) {
        tokens[static_cast<size_t>(i)] = 3 + (at + i) * 31 % 94;
        positions[static_cast<size_t>(i)] = at + i;
      }
      const KvReservation room[] = {{slot, at + kChunk}};
      (*kv)->reserve(room);
      const SequenceSpan spans[] = {{slot.index(), 0, kChunk, at, (*kv)->tiers(slot)}};
      (*model)->forward({tokens, positions, spans}, (*kv)->view(), threads_.stream());
    }
    EXPECT_EQ((*kv)->view().rows[0].high, kTokens);
    EXPECT_EQ((*kv)->accounting().usage(slot).bytes, (*kv)->accounting().slot_bytes(slot));
    return (*kv)->accounting().usage(slot);
  }
  static double share(const KvUsage& usage) {
    return static_cast<double>(usage.bytes) / static_cast<double>(usage.f16_bytes);
  }

  ModelConfig config_;
  ThreadPool threads_{2};
  TemporaryDirectory directory_;
};

TEST_F(KvBytes, AreAtMost42PercentOfF16ForK8V4) {
  EXPECT_LE(share(stored("k8v4", {})), 0.42);
  // Serving leankv too adds token scores (1.6 %) and pages that hold either format (4 % slack).
  EXPECT_LE(share(stored("k8v4", {*find_kv_preset("leankv")})), 0.435);
}

TEST_F(KvBytes, AreAtMost23PercentOfF16ForK4V2) {
  EXPECT_LE(share(stored("k4v2", {})), 0.23);
  EXPECT_LE(share(stored("k4v2", {*find_kv_preset("leankv")})), 0.23);
}

TEST_F(KvBytes, AreThoseOfTheTokensAndLittleMoreForF16) {
  const KvUsage usage = stored("f16", {});
  EXPECT_EQ(usage.f16_bytes, int64_t{kTokens} * 2 * 128 * 2);
  EXPECT_GE(share(usage), 1.0);
  EXPECT_LE(share(usage), 1.01);
}

}  // namespace
}  // namespace tessera
