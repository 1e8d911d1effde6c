#include "server/start/start_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/config/model_config.h"
#include "server/start/start_memory.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

// A model of 1 GiB, whose tokens take 10 KiB of pages and whose sequences have 1 MiB of buffers.
constexpr StartCost kModel{.fixed = kGiB, .slot = kMiB};
constexpr int64_t kTokenBytes = 10 << 10;
constexpr int32_t kLong = 32768;  // 320 MiB of pages

CostOf cost_of_model(StartCost cost = kModel) {
  return [cost](const StartSizes& sizes) -> absl::StatusOr<StartCost> {
    StartCost made = cost;
    made.pages = int64_t{sizes.context} * kTokenBytes;
    return made;
  };
}

// The memory of a machine with so many bytes, 16 MiB or more, beside the model and its requests.
MachineMemory with_beside(int64_t bytes) {
  return {.free = kModel.fixed + 16 * kMiB + bytes, .requests = 16 * kMiB};
}

StartSizes fit(const StartSizes& wishes, const MachineMemory& memory,
               int32_t model_context = kLong) {
  const absl::StatusOr<StartSizes> sizes =
      fit_start(wishes, model_context, memory, cost_of_model());
  EXPECT_TRUE(sizes.ok()) << sizes.status();
  return sizes.value_or(StartSizes{});
}

std::string refusal(const StartSizes& wishes, const MachineMemory& memory) {
  return std::string(fit_start(wishes, kLong, memory, cost_of_model()).status().message());
}

TEST(StartFit, TakesTheModelsOwnContextAndAQuarterOfTheFreeMemory) {
  EXPECT_EQ(fit({}, with_beside(4 * kGiB)), (StartSizes{kLong, 64, 512, kGiB}));
}

TEST(StartFit, TakesNoMoreThanAllSequencesNeed) {
  const StartSizes sizes = fit({}, with_beside(400 * kGiB));
  EXPECT_EQ(sizes.kv_bytes, 64 * (kMiB + kLong * kTokenBytes));
}

TEST(StartFit, TakesUpToHalfForOneWholeContext) {
  // A quarter is 200 MiB, with 50 sequences; a whole context takes 320 MiB.
  const StartSizes sizes = fit({}, with_beside(800 * kMiB));
  EXPECT_EQ(sizes, (StartSizes{kLong, 50, 512, 50 * kMiB + kLong * kTokenBytes}));
}

TEST(StartFit, ShortensTheContextToHalfOfTheFreeMemory) {
  const StartSizes sizes = fit({}, with_beside(400 * kMiB));  // 25 MiB are buffers
  EXPECT_EQ(sizes.context, (200 - 25) * kMiB / kTokenBytes / 256 * 256);
  EXPECT_LE(sizes.kv_bytes, 200 * kMiB);
  EXPECT_GE(sizes.kv_bytes, 100 * kMiB);
}

TEST(StartFit, ShortensTheContextNoFurtherThan2048Tokens) {
  // The least context takes 20 MiB and a sequence 1 MiB: more than half, but not more than all.
  EXPECT_EQ(fit({}, with_beside(24 * kMiB)).context, 2048);
  EXPECT_EQ(fit({}, with_beside(24 * kMiB), 1000).context, 1000) << "a shorter model";
}

TEST(StartFit, LeavesRequestsNoMoreThanHalf) {
  const MachineMemory tight{.free = kModel.fixed + 400 * kMiB, .requests = kGiB};
  const StartSizes sizes = fit({}, tight);
  EXPECT_LE(sizes.kv_bytes, 100 * kMiB);
  EXPECT_GE(sizes.context, 2048);
}

TEST(StartFit, RefusesAModelThatDoesNotFitWithTheNumbers) {
  EXPECT_THAT(refusal({}, {.free = 512 * kMiB, .requests = kGiB}),
              AllOf(HasSubstr("the model takes 1024 MiB"), HasSubstr("536870912 bytes (512 MiB)")));
  const std::string tight = refusal({}, {.free = kModel.fixed + 30 * kMiB, .requests = kGiB});
  EXPECT_THAT(tight, AllOf(HasSubstr("2048 tokens 21 MiB"), HasSubstr("(1060 MiB) are needed"),
                           HasSubstr("(1054 MiB) are free: lower")));
}

TEST(StartFit, KeepsWhatIsSet) {
  const MachineMemory memory = with_beside(4 * kGiB);
  EXPECT_EQ(fit({.kv_bytes = 3 * kGiB}, memory).kv_bytes, 3 * kGiB);
  EXPECT_EQ(fit({.kv_bytes = 30 * kGiB}, memory).kv_bytes, 30 * kGiB) << "checked by its size";
  EXPECT_EQ(fit({.sequences = 7}, memory).sequences, 7);
  EXPECT_EQ(fit({.context = 777}, memory).context, 777);
  EXPECT_EQ(fit({.step_tokens = 100}, memory).step_tokens, 100);
  EXPECT_EQ(fit({4096, 3, 600, kGiB}, memory), (StartSizes{4096, 3, 600, kGiB}));
}

TEST(StartFit, GivesAllSequencesTheirContextIfBothAreSet) {
  const StartSizes sizes = fit({.context = 4096, .sequences = 20}, with_beside(kGiB));
  EXPECT_EQ(sizes.kv_bytes, 20 * (kMiB + 4096 * kTokenBytes)) << "more than a quarter";
  EXPECT_THAT(refusal({.context = 4096, .sequences = 200}, with_beside(kGiB)),
              HasSubstr("200 sequences of 4096 tokens"));
}

TEST(StartFit, RefusesAContextThatIsSetAndDoesNotFit) {
  EXPECT_THAT(refusal({.context = kLong}, with_beside(200 * kMiB)),
              HasSubstr("one sequence of 32768 tokens"));
  EXPECT_THAT(refusal({.context = kLong + 1}, with_beside(kGiB)),
              HasSubstr("context is 32769, but the model was made for 32768 tokens"));
}

TEST(StartFit, FitsTheContextIntoAKvMemoryThatIsSet) {
  EXPECT_EQ(fit({.kv_bytes = kGiB}, with_beside(0)).context, kLong);
  const StartSizes sizes = fit({.kv_bytes = 64 * kMiB}, with_beside(0));
  EXPECT_EQ(sizes.sequences, 16) << "a quarter";
  EXPECT_EQ(sizes.context, 48 * kMiB / kTokenBytes / 256 * 256);
  EXPECT_EQ(fit({.kv_bytes = kMiB}, with_beside(0)).context, 2048) << "the engine refuses it";
}

TEST(StartFit, GivesAStepATokenOfEachSequence) {
  EXPECT_EQ(fit({.sequences = 600}, with_beside(64 * kGiB)).step_tokens, 600);
  EXPECT_EQ(fit({.step_tokens = 5}, with_beside(64 * kGiB)).sequences, 5);
}

TEST(StartFit, LeavesAllOfADeviceToTheCache) {
  const MachineMemory device{.free = 8 * kGiB, .requests = kGiB, .is_device = true};
  EXPECT_EQ(fit({}, device), (StartSizes{kLong, 64, 512, 0}));
  const MachineMemory small{.free = kModel.fixed + 200 * kMiB, .requests = kGiB, .is_device = true};
  const StartSizes sizes = fit({}, small);
  EXPECT_EQ(sizes.kv_bytes, 0);
  EXPECT_LT(sizes.context, kLong);
  EXPECT_GT(sizes.context, 10000) << "requests are in the host's memory";
  EXPECT_THAT(refusal({}, {.free = kModel.fixed, .requests = 0, .is_device = true}),
              HasSubstr("lower"));
}

TEST(StartFit, CountsTheRoomOfSwappedOutSequences) {
  StartCost swaps = kModel;
  swaps.swaps = true;
  const StartSizes sizes =
      fit_start({}, kLong, with_beside(4 * kGiB), cost_of_model(swaps)).value();
  EXPECT_NEAR(static_cast<double>(sizes.kv_bytes + sizes.kv_bytes / 4), kGiB, 8);
}

TEST(StartFit, TellsTheSizesInOneLine) {
  const MachineMemory memory = with_beside(400 * kMiB);
  EXPECT_THAT(describe(fit({}, memory), {}, kLong, memory),
              AllOf(HasSubstr("of the model's 32768 tokens, as memory allows"),
                    HasSubstr("25 sequences, steps of 512 tokens")));
  EXPECT_THAT(describe({kLong, 64, 512, kGiB}, {}, kLong, memory),
              HasSubstr("context the model's 32768 tokens, KV cache 1024 MiB"));
  EXPECT_THAT(describe({512, 64, 512, kGiB}, {.context = 512, .kv_bytes = kGiB}, kLong, memory),
              HasSubstr("context 512 tokens as set, KV cache 1024 MiB as set"));
}

// A container of 8 GiB and models of the usual shapes, in 4 or 8 bits.
struct Shape {
  const char* name;
  int32_t layers, heads, kv_heads, head_dim, hidden, ffn, vocab;
  double weight_bytes;
};

ModelConfig config_of(const Shape& shape) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.layers = shape.layers;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.hidden = shape.hidden;
  config.ffn = shape.ffn;
  config.vocab = shape.vocab;
  config.context = 131072;
  return config;
}

absl::StatusOr<StartSizes> start_in_8_gib(const Shape& shape) {
  const ModelConfig config = config_of(shape);
  ThreadPool pool(1);
  const StartModel model{config, static_cast<int64_t>(shape.weight_bytes),
                         cpu_backend(CpuIsa::scalar), pool.stream()};
  const EngineOptions options;
  const MachineMemory memory{.free = 8 * kGiB / 10 * 9, .requests = 1946157056};
  const CostOf cost = cost_of(options, model);
  absl::StatusOr<StartSizes> sizes = fit_start({}, config.context, memory, cost);
  if (sizes.ok()) {
    const absl::StatusOr<StartBytes> bytes = start_bytes(with_sizes(options, *sizes), model);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_LE(bytes->model() + bytes->kv.total_bytes(), memory.free) << shape.name;
  }
  return sizes;
}

TEST(StartFit, StartsEveryModelThatFitsIntoAContainerOf8GiB) {
  for (const Shape& shape : {Shape{"Qwen2.5-0.5B Q8", 24, 14, 2, 64, 896, 4864, 151936, 0.53e9},
                             Shape{"Llama-3.2-1B bf16", 16, 32, 8, 64, 2048, 8192, 128256, 2.5e9},
                             Shape{"Llama-3.2-3B Q8", 28, 24, 8, 128, 3072, 8192, 128256, 3.4e9},
                             Shape{"Llama-3.1-8B Q4", 32, 32, 8, 128, 4096, 14336, 128256, 4.9e9},
                             Shape{"Qwen2.5-7B Q6", 28, 28, 4, 128, 3584, 18944, 152064, 6.3e9}}) {
    const absl::StatusOr<StartSizes> sizes = start_in_8_gib(shape);
    ASSERT_TRUE(sizes.ok()) << shape.name << ": " << sizes.status();
    EXPECT_GE(sizes->context, 6000) << shape.name << ": an agent's first request";
    EXPECT_GE(sizes->sequences, 2) << shape.name;
  }
  const Shape large{"Llama-3.1-8B Q8", 32, 32, 8, 128, 4096, 14336, 128256, 8.5e9};
  EXPECT_THAT(std::string(start_in_8_gib(large).status().message()),
              AllOf(HasSubstr("are needed"), HasSubstr("(7372 MiB) are free")));
}

}  // namespace
}  // namespace tessera
