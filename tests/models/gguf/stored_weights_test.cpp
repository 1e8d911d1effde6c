// Weights of a GGUF file kept as they are: each block type alone, and mixed as K-quants mix them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "models/checkpoint/checkpoint.h"
#include "models/weights/weights.h"
#include "tests/models/gguf/quantised_file.h"
#include "tests/models/model_runner.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr TensorType kBlockTypes[] = {TensorType::q8_0, TensorType::q4_0, TensorType::q4_1,
                                      TensorType::q5_0, TensorType::q5_1, TensorType::q4_k,
                                      TensorType::q5_k, TensorType::q6_k};

const Backend& scalar() {
  return cpu_backend(CpuIsa::scalar);
}

// As llama.cpp mixes Q4_K_M: some tensors of a layer have more bits.
TensorType mixed(const std::string& tensor) {
  if (tensor == "token_embd.weight" || tensor == "blk.0.attn_v.weight") return TensorType::q6_k;
  return tensor == "blk.1.ffn_up.weight" ? TensorType::q8_0 : TensorType::q4_k;
}

class StoredWeights : public testing::Test {
 protected:
  absl::StatusOr<Weights> load(std::optional<WeightFormat> format = {}, Shard shard = {},
                               const Backend& backend = scalar(), int32_t threads = 1) {
    checkpoint_.emplace(*Checkpoint::open(path_));
    return Weights::load(config_, shard, *checkpoint_, format, backend, {.threads = threads});
  }
  template <class TypeOf>
  void write(const TypeOf& type_of) {
    write_file(path_, quantised_file(config_, type_of));
  }

  // Compares rows of a packed weight with rows of a tensor from row 0 on.
  void expect_rows(const PackedWeight& weight, int64_t first, const std::string& tensor,
                   TensorShape shape) {
    SCOPED_TRACE(tensor);
    const auto stored = checkpoint_->tensor(tensor, shape);
    ASSERT_TRUE(stored.ok()) << stored.status();
    std::vector<float> expected(static_cast<size_t>(shape[0] * shape[1]));
    read_f32(**stored, 0, expected);
    std::vector<int32_t> rows;
    for (int64_t row = 0; row < shape[0]; ++row) rows.push_back(static_cast<int32_t>(first + row));
    std::vector<float> found(expected.size());
    ThreadPool pool(1);
    scalar().embed(
        {.tokens = rows, .packed = &weight, .out = {found.data(), shape[0], shape[1], shape[1]}},
        pool.stream());
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0);
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "a.gguf";
  ModelConfig config_ = quantised_config();
  std::optional<Checkpoint> checkpoint_;
};

TEST_F(StoredWeights, HaveTheNumbersOfTheFileForEachType) {
  for (const TensorType type : kBlockTypes) {
    SCOPED_TRACE(name(type));
    write([type](const std::string&) { return type; });
    const auto weights = load();
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->formats(), name(weight_format(type)));
    const LayerWeights& layer = weights->views().layers[1];
    const std::string prefix = "model.layers.1.";
    ASSERT_EQ(layer.qkv.count, 1);
    expect_rows(layer.qkv.parts[0], 0, prefix + "self_attn.q_proj.weight", {256, 256});
    expect_rows(layer.qkv.parts[0], 256, prefix + "self_attn.k_proj.weight", {128, 256});
    expect_rows(layer.qkv.parts[0], 384, prefix + "self_attn.v_proj.weight", {128, 256});
    expect_rows(layer.gate_up.front().parts[0], 512, prefix + "mlp.up_proj.weight", {512, 256});
    expect_rows(layer.down.front().parts[0], 0, prefix + "mlp.down_proj.weight", {256, 512});
    expect_rows(weights->views().embedding_packed, 0, "model.embed_tokens.weight", {320, 256});
  }
}

TEST_F(StoredWeights, HaveTheNumbersOfTheFileForExperts) {
  config_.architecture = "MixtralForCausalLM";
  config_.experts = config_.own_experts = 3;
  config_.chosen_experts = 2;
  const auto type_of = [](const std::string& tensor) {
    return tensor.find("gate_inp") != std::string::npos ? TensorType::q8_0 : TensorType::q4_k;
  };
  write(type_of);
  const auto weights = load();
  ASSERT_TRUE(weights.ok()) << weights.status();
  const LayerWeights& layer = weights->views().layers[1];
  const std::string expert = "model.layers.1.block_sparse_moe.experts.2.";
  ASSERT_EQ(layer.down.size(), 3u);
  EXPECT_EQ(layer.down[2].parts[0].format, weight_format(TensorType::q4_k));
  expect_rows(layer.gate_up[2].parts[0], 512, expert + "w3.weight", {512, 256});
  expect_rows(layer.down[2].parts[0], 0, expert + "w2.weight", {256, 512});
}

// Within 5 % of the bytes of the file's tensors, K-quants within 12 %. Exact, because shapes are
// multiples of the panels: the factors of Q4_K and Q5_K take 8 bits here and 6 there.
TEST_F(StoredWeights, TakeTheBytesOfTheFileForEachType) {
  for (const TensorType type : kBlockTypes) {
    SCOPED_TRACE(name(type));
    write([type](const std::string&) { return type; });
    const auto weights = load();
    ASSERT_TRUE(weights.ok()) << weights.status();
    const auto measured = Weights::measure(config_, {}, *checkpoint_, std::nullopt, scalar());
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_EQ(measured->bytes, weights->bytes());
    const auto file = static_cast<double>(std::filesystem::file_size(path_));
    const auto ratio = static_cast<double>(weights->bytes()) / file;
    RecordProperty(std::string(name(type)), std::to_string(ratio));
    const bool has_packed_factors = type == TensorType::q4_k || type == TensorType::q5_k;
    EXPECT_LT(ratio, has_packed_factors ? 1.03 : 1.0);
    EXPECT_GT(ratio, 0.9);
  }
}

TEST_F(StoredWeights, ShareTheTableWithATiedHead) {
  write(mixed);
  const auto weights = load();
  ASSERT_TRUE(weights.ok()) << weights.status();
  const WeightViews& views = weights->views();
  EXPECT_EQ(views.embedding_packed.format, WeightFormat::int6_super);
  EXPECT_EQ(views.head.parts[0].data, views.embedding_packed.data);
  const auto converted = load(WeightFormat::int8);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->views().embedding_packed.format, WeightFormat::int6_super);
  EXPECT_NE(converted->views().head.parts[0].data, converted->views().embedding_packed.data);
}

TEST_F(StoredWeights, MayDifferInFormatWithinOneProduct) {
  write(mixed);
  const auto weights = load();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->formats(), "int4_super, int6_super, int8");
  const LayerWeights& first = weights->views().layers[0];
  ASSERT_EQ(first.qkv.count, 2);
  expect_rows(first.qkv.parts[0], 256, "model.layers.0.self_attn.k_proj.weight", {128, 256});
  expect_rows(first.qkv.parts[1], 0, "model.layers.0.self_attn.v_proj.weight", {128, 256});
  ASSERT_EQ(weights->views().layers[1].gate_up.front().count, 2);
  expect_rows(weights->views().layers[1].gate_up.front().parts[1], 0,
              "model.layers.1.mlp.up_proj.weight", {512, 256});
}

TEST_F(StoredWeights, AreTheSameOnAnyNumberOfThreads) {
  write(mixed);
  const auto one = load();
  const auto four = load({}, {}, scalar(), 4);
  ASSERT_TRUE(one.ok() && four.ok());
  ASSERT_EQ(one->bytes(), four->bytes());
  EXPECT_EQ(std::memcmp(one->views().embedding_packed.data, four->views().embedding_packed.data,
                        static_cast<size_t>(scalar().packed_weight_bytes(
                            WeightFormat::int6_super, config_.vocab, config_.hidden))),
            0);
}

// Only activations are rounded: to int8, as with weights of f32 they are not.
TEST_F(StoredWeights, GiveTheLogitsOfTheDequantisedWeightsInChunksAndWhole) {
  write(mixed);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 60; ++i) tokens.push_back(i * 37 % config_.vocab);
  for (const CpuIsa isa : cpu_isas()) {
    SCOPED_TRACE(name(isa));
    ModelRunner stored(path_, {.isa = isa, .weights = std::nullopt});
    const auto whole = stored.sequence(tokens, 128);
    EXPECT_EQ(stored.sequence(tokens, 7), whole);
    ModelRunner exact(path_, {.isa = isa});
    const auto expected = exact.sequence(tokens, 128);
    double difference = 0;
    double largest = 0;
    for (size_t row = 0; row < whole.size(); ++row) {
      for (size_t i = 0; i < whole[row].size(); ++i) {
        difference = std::max(difference, std::fabs(double{whole[row][i]} - expected[row][i]));
        largest = std::max(largest, std::fabs(double{expected[row][i]}));
      }
    }
    RecordProperty(std::string(name(isa)), std::to_string(difference / largest));
    EXPECT_LT(difference / largest, 0.05);
    EXPECT_GT(difference, 0);
  }
}

TEST_F(StoredWeights, AreNotSharedByRanksWithinASuperblock) {
  write(mixed);
  const auto halves = load({}, {.rank = 1, .ranks = 2});  // 128 of attention's 256 inputs
  EXPECT_EQ(halves.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(halves.status().message()),
              AllOf(HasSubstr("o_proj"), HasSubstr("blocks of 256")));
  write([](const std::string&) { return TensorType::q5_0; });
  const auto weights = load({}, {.rank = 1, .ranks = 2});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->views().layers[0].down.front().parts[0].cols, 256);
}

TEST_F(StoredWeights, AreRefusedByNameForAnInfiniteScale) {
  std::string file = quantised_file(config_, [](const std::string&) { return TensorType::q4_1; });
  const size_t norm = 256 * sizeof(float);     // the last tensor, behind the embedding
  file[file.size() - norm - 20 + 1] = '\x7c';  // the scale of the last block: infinity or NaN
  write_file(path_, file);
  const auto weights = load();
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(weights.status().message()),
              AllOf(HasSubstr("token_embd.weight"), HasSubstr("not finite")));
}

TEST_F(StoredWeights, ABackendWithoutKernelsRefusesByName) {
  write(mixed);
  Backend without = scalar();
  without.pack_codes = nullptr;
  without.looks_up = nullptr;
  const auto weights = load({}, {}, without);
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(weights.status().message()),
              AllOf(HasSubstr("blk.0.attn_q.weight"), HasSubstr("Q4_K"), HasSubstr("int4_super"),
                    HasSubstr("--weights f16")));
  EXPECT_TRUE(load(WeightFormat::f16, {}, without).ok());
}

}  // namespace
}  // namespace tessera
