// forward() and logits() must not allocate. Global operator new is replaced by one that counts.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>

#include "models/weights/random_checkpoint.h"
#include "tests/models/model_runner.h"
#include "tests/models/random_adapter.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace {

std::atomic<int64_t> g_allocations{0};

void* counted(size_t bytes, size_t alignment) {
  ++g_allocations;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}

constexpr size_t kPlain = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void* operator new(size_t bytes) {
  return counted(bytes, kPlain);
}
void* operator new[](size_t bytes) {
  return counted(bytes, kPlain);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, kPlain);
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace tessera {
namespace {

constexpr int32_t kTokens = 100;

class TransformerMemory : public testing::TestWithParam<const char*> {};

TEST_P(TransformerMemory, IsNotAllocatedByForward) {
  const TemporaryDirectory directory;
  ModelConfig config = tiny_llama_config();
  config.architecture = GetParam();
  if (config.architecture == "MixtralForCausalLM") {
    config.experts = config.own_experts = 8;
    config.chosen_experts = 2;
  }
  ASSERT_TRUE(write_random_checkpoint(directory.path(), config, 1).ok());
  const std::filesystem::path adapter_directory = directory.path() / "adapter";
  write_random_adapter(adapter_directory, config);
  const std::vector<int32_t> tokens = random_tokens(kTokens, 131, 1);
  std::vector<int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int32_t> rows = {kTokens - 1};
  std::vector<float> logits(131);
  for (const CpuIsa isa : cpu_isas()) {
    for (const WeightFormat weights : kWeightFormats) {
      SCOPED_TRACE(std::string(name(isa)) + " " + std::string(name(weights)));
      ModelRunner runner(directory.path(), {.isa = isa, .weights = weights, .kv = kKvK8V4});
      const auto adapter = runner.model().load_adapter(adapter_directory);
      ASSERT_TRUE(adapter.ok()) << adapter.status();
      const std::vector<AdapterRows> adapters = {{adapter->get(), 3, 70}, {adapter->get(), 90, 1}};
      runner.sequence(tokens, kTokens);  // allocates the pages of the slot
      const std::vector<SequenceSpan> sequences = {{0, 0, kTokens, 0, {}}};
      const KvPagesView pages = runner.arena().view();
      std::fill_n(pages.rows, pages.layers * pages.kv_heads, KvRow{});
      const int64_t before = g_allocations;
      Batch batch{tokens, positions, sequences};
      batch.adapters = adapters;
      runner.model().forward(batch, pages, runner.stream());
      runner.model().logits(rows, {logits.data(), 1, 131, 131}, runner.stream());
      EXPECT_EQ(g_allocations - before, 0);
    }
  }
  EXPECT_GT(g_allocations, 0);  // the counter works
}

INSTANTIATE_TEST_SUITE_P(All, TransformerMemory,
                         testing::Values("LlamaForCausalLM", "Qwen3ForCausalLM",
                                         "MixtralForCausalLM"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace tessera
