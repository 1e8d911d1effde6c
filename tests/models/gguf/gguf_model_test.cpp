// Models in GGUF files: their configuration, and their logits against the same weights in
// safetensors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/read_model_config.h"
#include "models/config/rope_table.h"
#include "models/weights/random_checkpoint.h"
#include "models/weights/weights.h"
#include "tests/models/gguf/gguf_checkpoint.h"
#include "tests/models/model_runner.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Writes a tiny model as safetensors in hf/ and as GGUF in a.gguf.
class GgufModelFile {
 public:
  GgufModelFile(const ModelConfig& config, TensorType type,
                GgufExperts experts = GgufExperts::stacked) {
    EXPECT_TRUE(write_random_checkpoint(hf(), config, 7, type).ok());
    GgufBytes bytes = gguf_metadata(config, architecture_of(config).gguf.name);
    if (config.rope_scaling.kind == RopeScaling::Kind::llama3) add_factors(config, bytes);
    add_tensors(config, hf(), bytes, experts);
    write_file(gguf(), bytes.file());
  }
  std::filesystem::path hf() const { return directory_ / "hf"; }
  std::filesystem::path gguf() const { return directory_ / "a.gguf"; }

 private:
  static void add_factors(const ModelConfig& config, GgufBytes& bytes) {
    ModelConfig plain = config;
    plain.rope_scaling = {};
    const std::vector<double> scaled = rope_frequencies(config, config.context);
    const std::vector<double> unscaled = rope_frequencies(plain, plain.context);
    std::string factors;
    for (size_t i = 0; i < scaled.size(); ++i) {
      put_number(factors, static_cast<float>(unscaled[i] / scaled[i]));
    }
    bytes.tensor("rope_freqs.weight", {scaled.size()}, 0, factors);
  }

  TemporaryDirectory directory_;
};

TEST(GgufModels, HaveTheLogitsOfTheSameWeightsInSafetensors) {
  for (const TinyModel& model : tiny_models()) {
    if (model.shards > 1 || !architecture_of(model.config).gguf.name) continue;
    const bool factors = model.config.rope_scaling.kind == RopeScaling::Kind::llama3;
    SCOPED_TRACE(model.name);
    const GgufModelFile files(model.config, model.type);
    const auto config = read_model_config(files.gguf());
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->architecture == "MistralForCausalLM", model.config.sliding_window > 0);
    const std::vector<int32_t> tokens = random_tokens(40, model.config.vocab, 1);
    const auto expected = ModelRunner(files.hf(), {}).sequence(tokens, 16);
    const auto found = ModelRunner(files.gguf(), {}).sequence(tokens, 16);
    if (!factors) {
      EXPECT_EQ(found, expected);
      continue;
    }
    for (size_t row = 0; row < found.size(); ++row) {  // the factors are rounded to f32
      EXPECT_THAT(found[row], testing::Pointwise(testing::FloatNear(1e-4f), expected[row]));
    }
  }
}

// One tensor of the file has all experts of a layer.
TEST(GgufModels, HaveTheLogitsOfSafetensorsForMixturesOfExperts) {
  std::set<std::string> families;
  for (const TinyModel& model : tiny_family_models()) {
    // Files need no key for the sum of the weights that their family has.
    const bool shares = architecture_of(model.config).gguf.qwen2_mixture;
    if (model.config.experts == 0 || model.config.normalise_experts == shares) continue;
    SCOPED_TRACE(model.name);
    const GgufModelFile files(model.config, TensorType::f32);
    const auto config = read_model_config(files.gguf());
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->architecture, model.config.architecture);
    EXPECT_EQ(config->experts, 8);
    EXPECT_EQ(config->chosen_experts, 2);
    const std::vector<int32_t> tokens = random_tokens(40, model.config.vocab, 1);
    const auto expected = ModelRunner(files.hf(), {}).sequence(tokens, 16);
    EXPECT_EQ(ModelRunner(files.gguf(), {}).sequence(tokens, 16), expected);
    const GgufModelFile old(model.config, TensorType::f32, GgufExperts::one_by_one);
    EXPECT_EQ(ModelRunner(old.gguf(), {}).sequence(tokens, 16), expected);
    families.insert(model.config.architecture);
  }
  EXPECT_THAT(families, testing::UnorderedElementsAre(
                            "MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM",
                            "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"));
}

TEST(GgufModels, ShareTheFeedForwardWidthAmongQwen2ExpertsWithoutWidths) {
  GgufBytes bytes = gguf_metadata(tiny_llama_config(), "qwen2moe");
  bytes.u32("qwen2moe.expert_count", 8).u32("qwen2moe.expert_used_count", 4);
  const TemporaryDirectory directory;
  write_file(directory / "a.gguf", bytes.file());
  const auto config = read_model_config(directory / "a.gguf");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ffn, tiny_llama_config().ffn / 4);
  EXPECT_EQ(config->shared_ffn, tiny_llama_config().ffn);
  EXPECT_FALSE(config->normalise_experts);
}

// Returns: true for a model with an option that GGUF files have no key for.
bool is_beyond_gguf(const ModelConfig& config) {
  const Architecture& architecture = architecture_of(config);
  return config.experts > 0 || config.activation != architecture.config.default_activation ||
         config.rope_scaling.kind == RopeScaling::Kind::dynamic ||
         (config.sliding_window > 0 && !config.layer_kinds.empty() &&
          architecture.gguf.unwindowed_every == 0);
}

TEST(GgufModels, HaveTheLogitsOfSafetensorsForEachFamily) {
  std::set<std::string> families;
  for (TinyModel& model : tiny_family_models()) {
    if (model.name == "llama_biases") model.config.activation = Activation::silu;
    if (model.name == "smollm3") model.config.layer_kinds = {{}, {}, {}, {.rotated = false}};
    const Architecture& architecture = architecture_of(model.config);
    if (architecture.gguf.name == nullptr || is_beyond_gguf(model.config)) continue;
    SCOPED_TRACE(model.name);
    const GgufModelFile files(model.config, TensorType::f32);
    const auto config = read_model_config(files.gguf());
    ASSERT_TRUE(config.ok()) << config.status();
    families.insert(architecture.gguf.name);
    const std::vector<int32_t> tokens = random_tokens(150, model.config.vocab, 1);
    EXPECT_EQ(ModelRunner(files.gguf(), {}).sequence(tokens, 50),
              ModelRunner(files.hf(), {}).sequence(tokens, 50));
  }
  EXPECT_THAT(families, testing::UnorderedElementsAre("gemma3", "granite", "llama", "mistral3",
                                                      "phi3", "qwen3", "smollm3"));
}

TEST(GgufModels, GiveTheConfigurationOfTheirMetadata) {
  ModelConfig config = tiny_llama_config();
  config.rope_theta = 100000;
  config.rope_scaling = {RopeScaling::Kind::linear, 4, 1, 4, 8192};
  config.tied_head = true;
  const GgufModelFile files(config, TensorType::bf16);
  const auto found = read_model_config(files.gguf());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->architecture, "LlamaForCausalLM");
  EXPECT_EQ(found->vocab, config.vocab);
  EXPECT_EQ(found->hidden, config.hidden);
  EXPECT_EQ(found->layers, config.layers);
  EXPECT_EQ(found->heads, config.heads);
  EXPECT_EQ(found->kv_heads, config.kv_heads);
  EXPECT_EQ(found->head_dim, config.head_dim);
  EXPECT_EQ(found->ffn, config.ffn);
  EXPECT_EQ(found->context, config.context);
  EXPECT_EQ(found->sliding_window, 0);
  EXPECT_FLOAT_EQ(found->norm_epsilon, config.norm_epsilon);
  EXPECT_FLOAT_EQ(found->rope_theta, 100000);
  EXPECT_EQ(found->rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_FLOAT_EQ(found->rope_scaling.factor, 4);
  EXPECT_TRUE(found->tied_head);
  EXPECT_EQ(found->eos_ids, config.eos_ids);
  EXPECT_EQ(stored_format(*Checkpoint::open(files.gguf())), WeightFormat::bf16);
}

class GgufConfigTest : public testing::Test {
 protected:
  GgufConfigTest() { config_.layers = 1; }

  GgufBytes metadata(const std::string& name = "llama") { return gguf_metadata(config_, name); }
  absl::StatusOr<ModelConfig> read(const GgufBytes& bytes) {
    write_file(path_, bytes.file());
    return read_model_config(path_);
  }
  void expect_refused(const GgufBytes& bytes, const std::string& text) {
    const auto config = read(bytes);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_THAT(std::string(config.status().message()),
                testing::AllOf(HasSubstr(path_.string()), HasSubstr(text)));
  }

  ModelConfig config_ = tiny_llama_config();
  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "model.gguf";
};

TEST_F(GgufConfigTest, RefusesByNameWhatItLacks) {
  ASSERT_TRUE(read(metadata()).ok());
  expect_refused(
      metadata("mamba"),
      "the architecture \"mamba\" is not supported; supported are gemma3, granite, granitemoe, "
      "llama, mistral3, phi3, qwen2, qwen2moe, qwen3, qwen3moe, smollm3");
  expect_refused(GgufBytes(), "general.architecture: is missing");
  expect_refused(metadata("qwen2").u32("qwen2.expert_count", 8), "qwen2.expert_count");
  expect_refused(metadata().u32("llama.expert_count", 8), "llama.expert_used_count: is missing");
  expect_refused(metadata().text("llama.rope.scaling.type", "ntk"), "\"ntk\" is not supported");
  expect_refused(metadata().text("llama.rope.scaling.type", "yarn"),
                 "llama.rope.scaling.factor: is missing");
  expect_refused(metadata().text("llama.rope.scaling.type", "longrope"),
                 "\"rope_factors_short.weight\": is missing");
  expect_refused(metadata().f32("llama.attention.temperature_scale", 0.1f), "temperature_scale");
  config_.rotary_dim = 8;
  expect_refused(metadata(), "llama.rope.dimension_count");
  config_.rotary_dim = 7;
  expect_refused(metadata("phi3"), "phi3.rope.dimension_count: is 7, expected an even number");
  config_.rotary_dim = 0;
  expect_refused(metadata().f32("llama.logit_scale", 2), "llama.logit_scale");
  expect_refused(metadata("qwen2").u32("qwen2.attention.sliding_window", 64),
                 "qwen2.attention.sliding_window");
}

TEST_F(GgufConfigTest, ACountOfNoExpertsIsAModelWithoutExperts) {
  const auto config = read(metadata().u32("llama.expert_count", 0));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
}

TEST_F(GgufConfigTest, RefusesOtherExpertsThanMixtralsAndQwen3s) {
  config_.experts = 4;
  config_.chosen_experts = 2;
  ASSERT_TRUE(read(metadata().u32("llama.expert_gating_func", 1)).ok());
  expect_refused(metadata().u32("llama.expert_gating_func", 2), "llama.expert_gating_func");
  expect_refused(metadata().u32("llama.expert_shared_count", 1), "llama.expert_shared_count");
  expect_refused(metadata().u32("llama.leading_dense_block_count", 1), "leading_dense_block_count");
  const GgufBytes bytes =
      metadata().tensor("blk.0.ffn_up_exps.weight", {48, 72, 3}, 0, std::string(41'472, '\0'));
  write_file(path_, bytes.file());
  EXPECT_THAT(std::string(Checkpoint::open(path_).status().message()),
              testing::AllOf(HasSubstr("\"blk.0.ffn_up_exps.weight\": has shape [3, 72, 48]"),
                             HasSubstr("expected [4, rows, cols]")));
}

TEST_F(GgufConfigTest, RefusesValuesOutOfRangeAndNamesTheKey) {
  const auto changed = [this](auto change) {
    const ModelConfig kept = config_;
    change(config_);
    const GgufBytes bytes = metadata();
    config_ = kept;
    return bytes;
  };
  expect_refused(changed([](ModelConfig& c) { c.layers = 0; }), "llama.block_count");
  expect_refused(changed([](ModelConfig& c) { c.kv_heads = 3; }), "llama.attention.head_count_kv");
  expect_refused(changed([](ModelConfig& c) { c.head_dim = 12; }), "heads of 12");
  expect_refused(changed([](ModelConfig& c) { c.norm_epsilon = 1; }), "layer_norm_rms_epsilon");
  expect_refused(changed([](ModelConfig& c) { c.rope_theta = 0; }), "llama.rope.freq_base");
  expect_refused(changed([](ModelConfig& c) { c.eos_ids = {c.vocab}; }), "eos_token_id");
  expect_refused(GgufBytes().text("general.architecture", "llama"), "llama.vocab_size");
  expect_refused(metadata().u32("tokenizer.ggml.bos_token_id", 131), "bos_token_id");
  expect_refused(metadata().tensor("rope_freqs.weight", {2}, 0, "12345678"), "rope_freqs.weight");
  expect_refused(metadata().tensor("rope_freqs.weight", {8}, 0, std::string(32, '\0')),
                 "rope_freqs.weight");
}

TEST_F(GgufConfigTest, EveryKnownEndOfATurnEndsAGeneration) {
  GgufBytes bytes = metadata();
  bytes.u32("tokenizer.ggml.eot_token_id", 5);
  bytes.texts("tokenizer.ggml.tokens", {"<|endoftext|>", "<|im_end|>", "x", "<|end|>"});
  bytes.numbers<int32_t>("tokenizer.ggml.token_type", 5, {3, 3, 1, 1});
  const auto config = read(bytes);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_ids, ElementsAre(0, 1, 2, 5));  // 3 is ordinary text
}

TEST_F(GgufConfigTest, AMissingTensorIsNamedAsTheFileWouldNameIt) {
  write_file(path_, metadata().file());
  const auto checkpoint = Checkpoint::open(path_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto weights = Weights::load(*read_model_config(path_), {}, *checkpoint, WeightFormat::f32,
                                     cpu_backend(CpuIsa::scalar));
  EXPECT_THAT(std::string(weights.status().message()),
              HasSubstr("misses tensor blk.0.attn_norm.weight"));
}

TEST_F(GgufConfigTest, AQuantisedTensorIsKeptByDefault) {
  GgufBytes bytes = metadata();
  bytes.tensor("token_embd.weight", {32, 2}, 8, std::string(68, '\0'));
  bytes.tensor("blk.0.ffn_up.weight", {1, 1}, 0, "1234");
  write_file(path_, bytes.file());
  EXPECT_EQ(stored_format(*Checkpoint::open(path_)), std::nullopt);
}

}  // namespace
}  // namespace tessera
