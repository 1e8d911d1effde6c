#include "models/weights/tensor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/config/rope_table.h"
#include "models/weights/random_checkpoint.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

std::vector<std::string> names(const ModelConfig& config) {
  std::vector<std::string> all;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    all.push_back(tensor.name);
  }
  return all;
}

int64_t rows_of(const ModelConfig& config, WeightSlot slot) {
  for (const WeightShape& shape : weight_shapes(config)) {
    if (shape.slot == slot) return shape.rows;
  }
  return 0;
}

TEST(TensorTable, HasTheTensorsOfALlama) {
  ModelConfig config = tiny_llama_config();
  config.layers = 1;
  EXPECT_THAT(
      names(config),
      testing::UnorderedElementsAre(
          "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
          "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
          "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
          "model.layers.0.post_attention_layernorm.weight", "model.layers.0.mlp.gate_proj.weight",
          "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
          "model.norm.weight", "lm_head.weight"));
}

TEST(TensorTable, ReadsATiedEmbeddingTwice) {
  ModelConfig config = tiny_llama_config();
  config.tied_head = true;
  const std::vector<std::string> all = names(config);
  EXPECT_EQ(std::count(all.begin(), all.end(), "model.embed_tokens.weight"), 2);
  EXPECT_EQ(std::count(all.begin(), all.end(), "lm_head.weight"), 0);
  EXPECT_EQ(rows_of(config, WeightSlot::head), config.vocab);
}

TEST(TensorTable, PutsTensorsOfOneSlotBelowEachOther) {
  ModelConfig config = tiny_llama_config();
  config.architecture = "Qwen2ForCausalLM";
  EXPECT_EQ(rows_of(config, WeightSlot::qkv), config.query_width() + 2 * config.kv_width());
  EXPECT_EQ(rows_of(config, WeightSlot::qkv_bias), rows_of(config, WeightSlot::qkv));
  EXPECT_EQ(rows_of(config, WeightSlot::gate_up), 2 * config.ffn);
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    const bool is_key = tensor.name.find("k_proj") != std::string::npos;
    const bool is_value = tensor.name.find("v_proj") != std::string::npos;
    const bool is_up = tensor.name.find("up_proj") != std::string::npos;
    const int64_t first = is_key     ? config.query_width()
                          : is_value ? config.query_width() + config.kv_width()
                          : is_up    ? config.ffn
                                     : 0;
    EXPECT_EQ(tensor.first_row, first) << tensor.name;
  }
}

// The second of two ranks has the last 11 of 22 experts, whole.
TEST(TensorTable, NamesATensorByItsLayerAndItsExpert) {
  const auto hidden = [](const ModelConfig& c) -> int64_t { return c.hidden; };
  const auto ffn = [](const ModelConfig& c) -> int64_t { return c.ffn; };
  constexpr ShardAxis kNone = ShardAxis::none;
  const TensorRule table[] = {{"model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight", "",
                               WeightSlot::gate_up, ffn, hidden, kNone, nullptr},
                              {"model.layers.{layer}.mlp.norm.weight", "", WeightSlot::ffn_norm,
                               hidden, nullptr, ShardAxis::none, nullptr},
                              {"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", "",
                               WeightSlot::gate_up, ffn, hidden, kNone, nullptr}};
  ModelConfig config = tiny_llama_config();
  config.layers = 12;
  config.experts = 22;
  config.own_experts = 22;
  const std::vector<ExpectedTensor> all = expected_tensors(table, config, Shard{1, 2});
  EXPECT_EQ(all.size(), 12u * (1 + 11 * 2));
  const auto named = [&](const std::string& name) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const ExpectedTensor& one) { return one.name == name; });
    EXPECT_NE(found, all.end()) << name;
    return found == all.end() ? ExpectedTensor{} : *found;
  };
  for (const TensorIndex& index : {TensorIndex{0, 0}, {1, 10}, {10, 1}, {11, 10}}) {
    const std::string expert = "model.layers." + std::to_string(index.layer) + ".mlp.experts." +
                               std::to_string(11 + index.expert);
    SCOPED_TRACE(expert);
    const ExpectedTensor gate = named(expert + ".gate_proj.weight");
    const ExpectedTensor up = named(expert + ".up_proj.weight");
    EXPECT_EQ(gate.index, index);
    EXPECT_EQ(up.index, index);
    EXPECT_EQ(gate.first_row, 0);  // an expert's gate and up are one slot
    EXPECT_EQ(up.first_row, config.ffn);
    EXPECT_EQ(up.stored_row, 0);
    EXPECT_EQ(up.shape, (TensorShape{config.ffn, config.hidden}));
  }
  const TensorIndex layer{11, TensorIndex::kNone};
  EXPECT_EQ(named("model.layers.11.mlp.norm.weight").index, layer);
}

TEST(RandomCheckpoint, IsTheSameForASeedHoweverItIsSharded) {
  const ModelConfig config = tiny_llama_config();
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_random_checkpoint(directory / "a", config, 7).ok());
  ASSERT_TRUE(write_random_checkpoint(directory / "b", config, 7).ok());
  ASSERT_TRUE(write_random_checkpoint(directory / "c", config, 8).ok());
  ASSERT_TRUE(write_random_checkpoint(directory / "d", config, 7, TensorType::f32, 4).ok());
  const std::string a = read_file(directory / "a/model.safetensors");
  EXPECT_EQ(a, read_file(directory / "b/model.safetensors"));
  EXPECT_NE(a, read_file(directory / "c/model.safetensors"));
  const auto whole = SafetensorsFile::open(directory / "a/model.safetensors");
  size_t found = 0;
  for (const char* shard : {"1", "2", "3", "4"}) {
    const auto part = SafetensorsFile::open(
        directory / (std::string("d/model-0000") + shard + "-of-00004.safetensors"));
    ASSERT_TRUE(part.ok()) << part.status();
    for (const auto& [name, tensor] : part->tensors()) {
      EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(),
                             whole->find(name)->bytes.begin(), whole->find(name)->bytes.end()));
      ++found;
    }
  }
  EXPECT_EQ(found, whole->tensors().size());
}

TEST(RopeTable, TurnsByTheFrequencyOfEachPair) {
  ModelConfig config = tiny_llama_config();
  config.head_dim = 8;
  EXPECT_THAT(rope_frequencies(config, config.context),
              testing::Pointwise(testing::DoubleNear(1e-12), {1.0, 0.1, 0.01, 0.001}));
  config.rope_scaling = {RopeScaling::Kind::linear, 4, 1, 4, 8192};
  EXPECT_THAT(rope_frequencies(config, config.context),
              testing::Pointwise(testing::DoubleNear(1e-12), {0.25, 0.025, 0.0025, 0.00025}));
}

// Frequencies of each pair, in f32, as transformers 5 computes them for theta 500000, head_dim 128,
// factor 8, low 1, high 4, original context 8192.
TEST(RopeTable, StretchesAsLlama31Does) {
  ModelConfig config = tiny_llama_config();
  config.head_dim = 128;
  config.rope_theta = 500000;
  config.rope_scaling = {RopeScaling::Kind::llama3, 8, 1, 4, 8192};
  const std::vector<double> ours = rope_frequencies(config, config.context);
  const std::pair<size_t, double> golden[] = {{0, 1},
                                              {20, 0.016560441},
                                              {28, 0.0032114461},
                                              {30, 0.0013718937},
                                              {34, 0.00017850779},
                                              {40, 3.4281024e-05},
                                              {63, 3.0689259e-07}};
  for (const auto& [pair, frequency] : golden) {
    EXPECT_NEAR(ours[pair] / frequency, 1, 1e-5) << pair;
  }
}

}  // namespace
}  // namespace tessera
