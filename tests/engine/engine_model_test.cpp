// The engine over a real transformer with random weights. Text must not depend on scheduling.

#include <gtest/gtest.h>

#include <string>

#include "engine/engine.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/kv_memory.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

struct Numbers {
  std::string name;
  CpuIsa isa = CpuIsa::scalar;
  WeightFormat weights = WeightFormat::f32;
  KvPreset kv = kKvPresetF32;
  std::vector<KvPreset> also = {};
};

struct Shape {
  std::string name;
  int32_t max_sequences = 1;
  int32_t max_step_tokens = 512;
  bool scarce = false;  // pages for one context only
  bool speculation = true;
};

class EngineText : public testing::TestWithParam<Numbers> {
 protected:
  static constexpr int32_t kContext = 288;
  static constexpr int32_t kHeadDim = 16;

  void SetUp() override {
    if (!cpu_supports(GetParam().isa)) {
      GTEST_SKIP() << "this machine has no " << name(GetParam().isa);
    }
    ModelConfig config = small_model(kContext);
    config.head_dim = kHeadDim;
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), config, 11).ok());
  }

  static std::vector<EngineRequest> requests() {
    std::vector<EngineRequest> requests(32);
    for (int32_t i = 0; i < 32; ++i) {
      EngineRequest& request = requests[static_cast<size_t>(i)];
      for (int32_t j = 0; j < 3 + (i * 37) % 125; ++j) {
        request.prompt.push_back(3 + (i * 31 + j * 17 + j * j) % 94);
      }
      request.max_tokens = i % 2 == 0 ? 140 : 24;
      request.ignore_eos = true;
      request.deterministic = true;  // also keeps lossy policies out of the prefix cache
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
      request.sampling.top_p = 0.9f;
      request.sampling.seed = static_cast<uint64_t>(i);
    }
    return requests;
  }

  // Returns: the texts of all requests, submitted at once.
  std::vector<std::vector<int32_t>> texts(const Shape& shape, EngineStats* stats) {
    const Backend& backend = cpu_backend(GetParam().isa);
    EngineOptions options;
    options.max_step_tokens = shape.max_step_tokens;
    options.max_sequences = shape.max_sequences;
    options.max_queue = 64;
    options.context = kContext;
    options.speculation = shape.speculation;
    options.kv = GetParam().kv;
    options.kv_also = GetParam().also;
    // no ladder: a demoted prefix would give another text
    options.kv_ladder = std::vector<KvFormat>{};
    const KvCacheOptions kv{.preset = options.kv,
                            .also = options.kv_also,
                            .prefix_cache = options.prefix_cache,
                            .layers = small_model(kContext).layers,
                            .kv_heads = small_model(kContext).kv_heads,
                            .head_dim = kHeadDim,
                            .slots = options.max_sequences,
                            .context = kContext};
    options.kv_bytes = shape.scarce ? kv_memory(kv, context_row_pages(kv)) : 0;
    const auto engine = engine_of({.directory = directory_.path(), .weights = GetParam().weights},
                                  options, backend, threads_.stream());
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (EngineRequest& request : requests()) {
      const size_t samples = sinks.size() % 5 == 0 ? 3 : 1;
      for (size_t i = 0; i < samples; ++i) {
        sinks.push_back(std::make_shared<RecordingSink>());
        request.sinks.push_back(sinks.back());
      }
      EXPECT_TRUE(engine->submit(std::move(request)).ok());
    }
    while (engine->step()) {
    }
    std::vector<std::vector<int32_t>> texts;
    for (const auto& sink : sinks) {
      EXPECT_EQ(sink->finish()->reason, FinishReason::length);
      texts.push_back(sink->tokens());
    }
    *stats = engine->stats();
    return texts;
  }

  ThreadPool threads_{2};
  TemporaryDirectory directory_;
};

TEST_P(EngineText, IsTheSameAloneInABatchInChunksAndAfterPreemption) {
  EngineStats stats;
  const auto alone = texts({.name = "alone", .speculation = false}, &stats);
  EXPECT_EQ(stats.preemptions, 0);
  EXPECT_EQ(stats.drafts, 0);
  for (const Shape& shape :
       {Shape{"alone, speculating"}, Shape{"a batch of 32", 32, 512}, Shape{"chunks of 7", 7, 7},
        Shape{"chunks of 33", 5, 33}, Shape{"preempted", 32, 64, true}}) {
    SCOPED_TRACE(shape.name);
    EXPECT_EQ(texts(shape, &stats), alone);
    EXPECT_EQ(stats.preemptions > 0, shape.scarce);
    EXPECT_EQ(stats.pages_free, stats.pages_total);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EngineText,
    testing::Values(
        Numbers{"scalar_f32", CpuIsa::scalar}, Numbers{"avx2_f32", CpuIsa::avx2},
        Numbers{"avx512_f32", CpuIsa::avx512},
        Numbers{"scalar_bf16_kv16", CpuIsa::scalar, WeightFormat::bf16, kKvPresetF16},
        Numbers{"avx2_int8_kv16", CpuIsa::avx2, WeightFormat::int8, kKvPresetF16},
        Numbers{"avx512_bf16_kv16", CpuIsa::avx512, WeightFormat::bf16, kKvPresetF16},
        Numbers{"avx512_int8_kv16", CpuIsa::avx512, WeightFormat::int8, kKvPresetF16},
        Numbers{"avx512_int4_kv16", CpuIsa::avx512, WeightFormat::int4, kKvPresetF16},
        Numbers{"scalar_f32_k8v4", CpuIsa::scalar, WeightFormat::f32, *find_kv_preset("k8v4")},
        Numbers{"avx2_f32_k4v2", CpuIsa::avx2, WeightFormat::f32, *find_kv_preset("k4v2")},
        Numbers{"avx512_bf16_k8v4", CpuIsa::avx512, WeightFormat::bf16, *find_kv_preset("k8v4")},
        Numbers{"avx512_int8_k4v2", CpuIsa::avx512, WeightFormat::int8, *find_kv_preset("k4v2")},
        Numbers{"scalar_f32_leankv", CpuIsa::scalar, WeightFormat::f32, lossy("leankv")},
        Numbers{"avx512_bf16_leankv", CpuIsa::avx512, WeightFormat::bf16, lossy(kStrictLeanKv)},
        Numbers{"avx2_f32_kv_compress", CpuIsa::avx2, WeightFormat::f32, lossy("kv-compress")},
        // The server also offers a more precise format, which no sequence uses.
        Numbers{"avx512_f32_k4v2_beside_f16",
                CpuIsa::avx512,
                WeightFormat::f32,
                *find_kv_preset("k4v2"),
                {kKvPresetF16}},
        Numbers{"scalar_f32_s50", CpuIsa::scalar, WeightFormat::f32, *find_kv_preset("s50")},
        Numbers{"avx512_bf16_s70_k4v4", CpuIsa::avx512, WeightFormat::bf16,
                *find_kv_preset("s70-k4v4")},
        Numbers{"scalar_f32_output_aware", CpuIsa::scalar, WeightFormat::f32, output_aware()},
        Numbers{"avx512_bf16_output_aware", CpuIsa::avx512, WeightFormat::bf16, output_aware()},
        Numbers{"avx512_int8_all_queries", CpuIsa::avx512, WeightFormat::int8, lossy(kAllQueries)},
        Numbers{"avx512_f32_k8v8", CpuIsa::avx512, WeightFormat::f32, *find_kv_preset("k8v8")},
        Numbers{"avx512_f32_k4v4", CpuIsa::avx512, WeightFormat::f32, *find_kv_preset("k4v4")},
        Numbers{"avx512_f32_snapkv", CpuIsa::avx512, WeightFormat::f32, lossy("snapkv")},
        Numbers{"avx512_f32_streaming", CpuIsa::avx512, WeightFormat::f32, lossy("streaming")}),
    [](const auto& numbers) { return numbers.param.name; });

}  // namespace
}  // namespace tessera
