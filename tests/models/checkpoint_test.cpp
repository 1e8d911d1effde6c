#include "models/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "models/weights/random_checkpoint.h"
#include "models/weights/weights.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string message(const absl::Status& status) {
  return std::string(status.message());
}

NamedTensor zeros(const std::string& tensor_name, TensorShape shape,
                  TensorType type = TensorType::f32) {
  int64_t bytes = bytes_of(type);
  for (const int64_t extent : shape) {
    bytes *= extent;
  }
  return {tensor_name, type, std::move(shape), std::vector<std::byte>(static_cast<size_t>(bytes))};
}

class CheckpointTest : public testing::Test {
 protected:
  void write_index(const std::string& text) {
    write_file(directory_ / "model.safetensors.index.json", text);
  }
  void write_shard(const std::string& file, const std::vector<NamedTensor>& tensors) {
    ASSERT_TRUE(write_safetensors(directory_ / file, tensors).ok());
  }
  absl::StatusOr<Checkpoint> open() const { return Checkpoint::open(directory_.path()); }

  TemporaryDirectory directory_;
};

TEST_F(CheckpointTest, FindsTensorsOfShards) {
  write_shard("one.safetensors", {zeros("a", {2}), zeros("unlisted", {1})});
  write_shard("two.safetensors", {zeros("b", {3, 1})});
  write_index(
      R"({"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  const auto checkpoint = open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(checkpoint->tensor("a", TensorShape{2}).ok());
  EXPECT_TRUE(checkpoint->tensor("b", TensorShape{3, 1}).ok());
  EXPECT_EQ(checkpoint->tensor("unlisted", TensorShape{1}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(checkpoint->names(), testing::ElementsAre("a", "b"));
}

TEST_F(CheckpointTest, MatricesStayInTwoBytesWhereAllOfThemAre) {
  const auto stored_as = [this](const std::vector<NamedTensor>& tensors) {
    write_shard("model.safetensors", tensors);
    return stored_format(*open());
  };
  const NamedTensor one = zeros("a", {4, 2}, TensorType::bf16);
  EXPECT_EQ(stored_as({one, zeros("norm", {2})}), WeightFormat::bf16);
  EXPECT_EQ(stored_as({one, zeros("b", {2, 2}, TensorType::f16)}), WeightFormat::f32);
  EXPECT_EQ(stored_as({one, zeros("b", {2, 2})}), WeightFormat::f32);
  EXPECT_EQ(stored_as({zeros("b", {2, 2}, TensorType::f16)}), WeightFormat::f16);
}

TEST_F(CheckpointTest, SplitsATensorOfAllExpertsIntoTheirOwn) {
  const std::string block = "model.layers.1.block_sparse_moe.";
  NamedTensor inputs = zeros(block + "input_linear.weight", {3, 4, 2});
  for (size_t i = 0; i < inputs.bytes.size(); i += sizeof(float)) {
    const auto number = static_cast<float>(i / sizeof(float));
    std::memcpy(inputs.bytes.data() + i, &number, sizeof(float));
  }
  NamedTensor shared = inputs;
  shared.name = "model.layers.1.shared_mlp.input_linear.weight";
  shared.shape = {12, 2};
  write_shard("model.safetensors",
              {inputs, shared, zeros(block + "output_linear.weight", {3, 2, 2})});
  const auto checkpoint = open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->names().size(), 3u * 3 + 2);
  const auto first_of = [&](const std::string& name, const TensorShape& shape) {
    const auto tensor = checkpoint->tensor(name, shape);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    float first = 0;
    read_f32(**tensor, 0, {&first, 1});
    return first;
  };
  EXPECT_EQ(first_of(block + "experts.0.gate.weight", {2, 2}), 0);
  EXPECT_EQ(first_of(block + "experts.0.up.weight", {2, 2}), 4);
  EXPECT_EQ(first_of(block + "experts.2.up.weight", {2, 2}), 20);
  EXPECT_EQ(first_of(block + "experts.2.down.weight", {2, 2}), 0);
  EXPECT_EQ(first_of("model.layers.1.shared_mlp.up.weight", {6, 2}), 12);
  EXPECT_THAT(checkpoint->describe(block + "experts.2.up.weight"), HasSubstr(inputs.name));
  EXPECT_THAT(
      message(checkpoint->tensor(block + "experts.3.up.weight", TensorShape{2, 2}).status()),
      HasSubstr("misses tensor " + inputs.name));
}

TEST_F(CheckpointTest, RefusesATensorOfAllExpertsWithAnotherShape) {
  const std::string name = "model.layers.0.block_sparse_moe.input_linear.weight";
  for (const TensorShape& shape : {TensorShape{4, 2}, TensorShape{2, 3, 2}, TensorShape{0, 4, 2},
                                   TensorShape{100'000, 2, 0}, TensorShape{4}, TensorShape{}}) {
    write_shard("model.safetensors", {zeros(name, shape)});
    const auto checkpoint = open();
    ASSERT_FALSE(checkpoint.ok());
    EXPECT_EQ(checkpoint.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(message(checkpoint.status()), HasSubstr(name));
  }
}

TEST_F(CheckpointTest, FollowsSymbolicLinksAsHuggingFacesCacheMakesThem) {
  write_shard("blob", {zeros("a", {2})});
  std::filesystem::create_symlink(directory_ / "blob", directory_ / "model.safetensors");
  EXPECT_TRUE(open().ok());
}

TEST_F(CheckpointTest, SaysWhichFilesItLookedFor) {
  EXPECT_EQ(open().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message(open().status()), AllOf(HasSubstr(directory_.path().string()),
                                              HasSubstr("model.safetensors.index.json")));
}

TEST_F(CheckpointTest, DoesNotTurnToAnIndexWhenTheSingleFileIsDamaged) {
  write_shard("one.safetensors", {zeros("a", {2})});
  write_index(R"({"weight_map": {"a": "one.safetensors"}})");
  write_file(directory_ / "model.safetensors", "damaged");
  EXPECT_EQ(open().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointTest, RefusesAnIndexThatPointsOutsideItsDirectory) {
  const TemporaryDirectory outside;
  ASSERT_TRUE(
      write_safetensors(outside / "x.safetensors", std::vector<NamedTensor>{zeros("a", {2})}).ok());
  std::filesystem::create_directory(directory_ / "sub");
  write_shard("sub/x.safetensors", {zeros("a", {2})});
  for (const std::string& shard :
       {(outside / "x.safetensors").string(),
        "../" + outside.path().filename().string() + "/x.safetensors",
        std::string("sub/x.safetensors"), std::string("."), std::string(".."), std::string(),
        std::string("a\\\\b"), std::string("a\\u0000b")}) {
    SCOPED_TRACE(shard);
    write_index(R"({"weight_map": {"a": ")" + shard + R"("}})");
    EXPECT_EQ(open().status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(message(open().status()), HasSubstr("plain file name"));
  }
}

TEST_F(CheckpointTest, RefusesADamagedIndex) {
  write_shard("one.safetensors", {zeros("a", {2})});
  const std::pair<const char*, const char*> damaged[] = {
      {"", "JSON"},
      {"[]", "weight_map"},
      {"{}", "weight_map"},
      {R"({"weight_map": []})", "weight_map"},
      {R"({"weight_map": {"a": 1}})", "\"a\""},
      {R"({"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}})", "twice"},
      {R"({"weight_map": {"b": "one.safetensors"}})", "has no tensor \"b\""},
  };
  for (const auto& [text, says] : damaged) {
    SCOPED_TRACE(text);
    write_index(text);
    EXPECT_EQ(open().status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(message(open().status()), HasSubstr(says));
  }
  write_index(R"({"weight_map": {"a": "missing.safetensors"}})");
  EXPECT_EQ(open().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message(open().status()), HasSubstr("missing.safetensors"));
}

TEST_F(CheckpointTest, NamesFileTensorAndShapes) {
  write_shard("model.safetensors", {zeros("a", {2, 3}), zeros("i", {2}, TensorType::i64)});
  const auto checkpoint = open();
  EXPECT_THAT(message(checkpoint->tensor("a", TensorShape{3, 2}).status()),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("\"a\""), HasSubstr("[2, 3]"),
                    HasSubstr("[3, 2]")));
  EXPECT_FALSE(checkpoint->tensor("a", TensorShape{6}).ok());
  EXPECT_FALSE(checkpoint->tensor("a", TensorShape{2, 3, 1}).ok());
  EXPECT_THAT(message(checkpoint->tensor("gone", TensorShape{7, 9}).status()),
              AllOf(HasSubstr(directory_.path().string()), HasSubstr("gone"), HasSubstr("[7, 9]")));
  EXPECT_EQ(checkpoint->tensor("i", TensorShape{2}).status().code(),
            absl::StatusCode::kUnimplemented);
}

// Weights::load on a checkpoint with one change.
class WeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), config_, 1).ok());
    const auto file = SafetensorsFile::open(directory_ / "model.safetensors");
    for (const auto& [tensor_name, stored] : file->tensors()) {
      tensors_.push_back(
          {tensor_name, stored.type, stored.shape, {stored.bytes.begin(), stored.bytes.end()}});
    }
  }
  NamedTensor& tensor(const std::string& tensor_name) {
    return *std::find_if(tensors_.begin(), tensors_.end(),
                         [&](const NamedTensor& t) { return t.name == tensor_name; });
  }
  absl::Status load(WeightFormat format = WeightFormat::f32, Shard shard = {}) {
    EXPECT_TRUE(write_safetensors(directory_ / "model.safetensors", tensors_).ok());
    const auto checkpoint = Checkpoint::open(directory_.path());
    return Weights::load(config_, shard, *checkpoint, format, cpu_backend(CpuIsa::scalar)).status();
  }

  ModelConfig config_ = tiny_llama_config();
  TemporaryDirectory directory_;
  std::vector<NamedTensor> tensors_;
};

TEST_F(WeightsTest, RefusesACheckpointThatMissesAnyOneTensor) {
  ASSERT_TRUE(load().ok());
  const std::vector<NamedTensor> all = tensors_;
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    tensors_ = all;
    tensors_.erase(tensors_.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(load().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(message(load()), AllOf(HasSubstr(all[i].name), HasSubstr(shown(all[i].shape))));
  }
}

TEST_F(WeightsTest, RefusesAnyOneTensorOfAnotherShape) {
  const std::vector<NamedTensor> all = tensors_;
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    tensors_ = all;
    tensors_[i].shape = {std::ssize(tensors_[i].bytes) / 4};
    tensors_[i].shape.push_back(1);
    EXPECT_EQ(load().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(message(load()), AllOf(HasSubstr(all[i].name), HasSubstr(shown(all[i].shape))));
  }
}

TEST_F(WeightsTest, RefusesAnUnusedTensor) {
  tensors_.push_back(zeros("model.layers.0.self_attn.q_norm.weight", {16}));
  EXPECT_EQ(load().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message(load()), HasSubstr("q_norm"));
}

TEST_F(WeightsTest, IgnoresWhatOldExportersLeftBehind) {
  tensors_.push_back(zeros("model.layers.0.self_attn.rotary_emb.inv_freq", {8}));
  EXPECT_TRUE(load().ok());
  config_.tied_head = true;  // lm_head.weight exists nevertheless
  EXPECT_TRUE(load().ok());
}

TEST_F(WeightsTest, RefusesAValueThatIsNotFinite) {
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    NamedTensor& damaged = tensor("model.layers.1.mlp.up_proj.weight");
    std::memcpy(damaged.bytes.data() + damaged.bytes.size() - 4, &value, sizeof(value));
    EXPECT_EQ(load().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(message(load()),
                AllOf(HasSubstr("model.layers.1.mlp.up_proj.weight"), HasSubstr("finite")));
  }
}

// Attention's output has 64 inputs, down has 72.
TEST_F(WeightsTest, RefusesRanksThatWouldShareABlockOfInputs) {
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    SCOPED_TRACE(name(format));
    EXPECT_TRUE(load(format).ok());
    EXPECT_EQ(load(format, {.rank = 0, .ranks = 2}).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(message(load(format, {.rank = 1, .ranks = 2})),
                AllOf(HasSubstr("mlp.down_proj.weight"), HasSubstr("2 ranks"), HasSubstr("72"),
                      HasSubstr(std::string(name(format))), HasSubstr("blocks of 32")));
  }
  EXPECT_TRUE(load(WeightFormat::fp8, {.rank = 0, .ranks = 2}).ok());
}

TEST_F(WeightsTest, KeepsTheEmbeddingExactForF32Weights) {
  EXPECT_EQ(embedding_type(WeightFormat::f32, TensorType::f32), TensorType::f32);
  EXPECT_EQ(embedding_type(WeightFormat::f32, TensorType::f16), TensorType::f32);
  EXPECT_EQ(embedding_type(WeightFormat::f32, TensorType::bf16), TensorType::bf16);
  EXPECT_EQ(embedding_type(WeightFormat::int8, TensorType::f32), TensorType::bf16);
}

}  // namespace
}  // namespace tessera
