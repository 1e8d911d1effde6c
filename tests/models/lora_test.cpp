// Compares adapters with PEFT: logits of random models under random adapters, and under one that
// PEFT trained, are stored in tests/golden (lora_golden.py). With TESSERA_ADAPTERS_OUT=DIR this
// test leaves models and adapters there for it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "models/lora/adapter.h"
#include "models/weights/random_checkpoint.h"
#include "tests/models/gguf/gguf_checkpoint.h"
#include "tests/models/golden_logits.h"
#include "tests/models/random_adapter.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

using Logits = std::vector<std::vector<float>>;
using Adapter = std::shared_ptr<const LoraAdapter>;

const std::filesystem::path kGolden = TESSERA_SOURCE_DIR "/tests/golden";

const json& golden() {
  static const json kFound = json::parse(read_file(kGolden / "lora.json"));
  return kFound;
}

ModelConfig config_of(const std::string& name) {
  const std::vector<TinyModel> models = all_tiny_models();
  return std::ranges::find(models, name, &TinyModel::name)->config;
}

// The logits of the entry, within the bound.
// Returns: the largest difference.
double expect_near(const json& entry, const Logits& found, double bound) {
  double largest = 0;
  for (const json& at : entry.at("logits")) {
    const auto expected = at.at("values").get<std::vector<double>>();
    const auto& row = found.at(at.at("position").get<size_t>());
    EXPECT_EQ(expected.size(), row.size());
    for (size_t i = 0; i < std::min(expected.size(), row.size()); ++i) {
      largest = std::max(largest, std::fabs(double{row[i]} - expected[i]));
    }
  }
  EXPECT_LT(largest, bound);
  return largest;
}

// Returns: the largest difference of two logits.
double largest_difference(const Logits& a, const Logits& b) {
  double largest = 0;
  for (size_t row = 0; row < a.size(); ++row) {
    for (size_t i = 0; i < a[row].size(); ++i) {
      largest = std::max(largest, std::fabs(double{a[row][i]} - double{b[row][i]}));
    }
  }
  return largest;
}

// A model and adapters of one architecture.
class LoraTest : public testing::Test {
 protected:
  void write_model(const std::string& name) {
    config_ = config_of(name);
    ASSERT_TRUE(write_random_checkpoint(model_, config_, 1).ok());
  }
  std::filesystem::path adapter(const std::string& name, const RandomAdapter& of = {}) {
    write_random_adapter(directory_.path() / name, config_, of);
    return directory_.path() / name;
  }
  static Adapter load(ModelRunner& runner, const std::filesystem::path& path) {
    absl::StatusOr<Adapter> loaded = runner.model().load_adapter(path);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.value();
  }

  TemporaryDirectory directory_;
  std::filesystem::path model_ = directory_.path() / "model";
  ModelConfig config_;
};

// ---- PEFT's logits

struct Compared {
  std::string model;
  RandomAdapter adapter = {};
};

std::vector<Compared> compared_models() {
  using enum WeightSlot;
  return {{"llama"},
          {"llama_odd_sizes", {.rank = 3, .alpha = 5}},
          {"mistral_window", {.rank = 16, .alpha = 4, .stabilised = true}},
          {"qwen2", {.type = TensorType::bf16}},
          {"qwen3", {.slots = {qkv}}},
          {"phi3"},
          {"granite", {.slots = {attention_out, down}}},
          {"gemma3", {.rank = 8, .alpha = 16}},
          {"smollm3", {.slots = {gate_up, down}}},
          {"mixtral"}};
}

class LoraGolden : public testing::TestWithParam<Compared> {};

TEST_P(LoraGolden, LogitsAreThoseOfPeft) {
  const auto& [name, of] = GetParam();
  const char* kept = std::getenv("TESSERA_ADAPTERS_OUT");
  const TemporaryDirectory temporary;
  const std::filesystem::path directory =
      (kept != nullptr ? std::filesystem::path(kept) : temporary.path()) / name;
  const ModelConfig config = config_of(name);
  std::filesystem::create_directories(directory);
  ASSERT_TRUE(write_random_checkpoint(directory / "model", config, 1).ok());
  write_random_adapter(directory / "adapter", config, of);
  if (!golden().contains(name)) GTEST_SKIP() << "no golden logits";
  const json& entry = golden().at(name);
  const auto ids = entry.at("ids").get<std::vector<int32_t>>();
  for (const CpuIsa isa : cpu_isas()) {
    SCOPED_TRACE(tessera::name(isa));
    ModelRunner runner(directory / "model", {.isa = isa});
    const auto adapter = runner.model().load_adapter(directory / "adapter");
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    expect_near(entry, runner.sequence(ids, 64, adapter->get()), 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LoraGolden, testing::ValuesIn(compared_models()),
                         [](const auto& compared) { return compared.param.model; });

TEST_F(LoraTest, AnAdapterThatPeftTrainedAndSavedHasItsLogits) {
  write_model("llama");
  const json& entry = golden().at("trained");
  const auto ids = entry.at("ids").get<std::vector<int32_t>>();
  ModelRunner runner(model_, {.isa = best_cpu_isa()});
  const Adapter trained = load(runner, kGolden / "lora_trained");
  expect_near(entry, runner.sequence(ids, 64, trained.get()), 1e-4);
}

// live_lora.sh leaves a real checkpoint and adapters there.
TEST(LiveLora, LogitsAreThoseOfPeft) {
  const char* const named = std::getenv("TESSERA_LIVE_LORA");
  if (named == nullptr) GTEST_SKIP() << "no TESSERA_LIVE_LORA";
  const std::filesystem::path directory = named;
  ModelRunner runner(directory / "model", {.isa = best_cpu_isa(), .slots = 1, .context = 256});
  const json of_peft = json::parse(read_file(directory / "golden.json"));
  for (const auto& [name, entry] : of_peft.items()) {
    SCOPED_TRACE(name);
    const Adapter adapter = runner.model().load_adapter(directory / name).value();
    const auto ids = entry.at("ids").get<std::vector<int32_t>>();
    const double largest = expect_near(entry, runner.sequence(ids, 64, adapter.get()), 1e-4);
    std::printf("%s: logits differ by %.1e at most\n", name.c_str(), largest);
  }
}

// ---- batches

// Steps whose rows have no adapter, one adapter, or another.
TEST_F(LoraTest, BitsOfARowDoNotDependOnItsNeighboursOrTheDivisionIntoSteps) {
  write_model("llama");
  const std::filesystem::path wide = adapter("wide", {.seed = 2, .rank = 8});
  const std::filesystem::path narrow =
      adapter("narrow", {.seed = 3, .rank = 3, .slots = {WeightSlot::qkv, WeightSlot::down}});
  for (const CpuIsa isa : cpu_isas()) {
    for (const WeightFormat weights : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::int8}) {
      SCOPED_TRACE(std::string(name(isa)) + " " + std::string(name(weights)));
      ModelRunner runner(model_, {.isa = isa, .weights = weights, .slots = 5, .step_tokens = 400});
      const Adapter a = load(runner, wide);
      const Adapter b = load(runner, narrow);
      const std::vector<const LoraAdapter*> order = {a.get(), nullptr, b.get(), a.get(), b.get()};
      std::vector<Logits> alone;
      for (uint32_t i = 0; i < order.size(); ++i) {
        alone.push_back(runner.sequence(random_tokens(150, config_.vocab, i), 400, order[i]));
      }
      runner.clear(0);
      std::vector<Logits> together(order.size());
      for (const auto& [first, count] : {std::pair{0, 1}, {1, 6}, {7, 70}, {77, 1}, {78, 72}}) {
        std::vector<Piece> pieces;
        for (size_t i = 0; i < order.size(); ++i) {
          const auto all = random_tokens(150, config_.vocab, static_cast<uint32_t>(i));
          pieces.push_back({static_cast<int32_t>(i),
                            {all.begin() + first, all.begin() + first + count},
                            order[i]});
        }
        const Logits logits = runner.step(pieces);
        for (size_t row = 0; row < logits.size(); ++row) {
          together[row / static_cast<size_t>(count)].push_back(logits[row]);
        }
      }
      EXPECT_EQ(together, alone);
      EXPECT_NE(alone[0], alone[3]);
    }
  }
}

TEST_F(LoraTest, RowsWithoutAnAdapterHaveTheBitsOfAStepWithoutAny) {
  write_model("llama");
  const std::vector<int32_t> tokens = random_tokens(60, config_.vocab, 1);
  ModelRunner runner(model_,
                     {.isa = best_cpu_isa(), .weights = WeightFormat::int8, .step_tokens = 200});
  const Adapter some = load(runner, adapter("some"));
  const Logits plain = runner.sequence(tokens, 60);
  runner.clear(0);
  const std::vector<Piece> pieces = {{0, tokens, some.get()}, {1, tokens}, {2, tokens, some.get()}};
  const Logits mixed = runner.step(pieces);
  EXPECT_EQ(Logits(mixed.begin() + 60, mixed.begin() + 120), plain);
  EXPECT_EQ(Logits(mixed.begin(), mixed.begin() + 60), Logits(mixed.begin() + 120, mixed.end()));
  EXPECT_GT(largest_difference({mixed.begin(), mixed.begin() + 60}, plain), 0.1);
}

// Beside weights that have lost some, the adapter's bf16 loses little more.
TEST_F(LoraTest, OverQuantisedWeightsChangesLogitsAsOverExactOnes) {
  write_model("llama");
  const std::filesystem::path path = adapter("some");
  const std::vector<int32_t> tokens = random_tokens(60, config_.vocab, 1);
  ModelRunner exact(model_, {.isa = best_cpu_isa()});
  const Adapter of_exact = load(exact, path);
  const Logits plain = exact.sequence(tokens, 60);
  const Logits adapted = exact.sequence(tokens, 60, of_exact.get());
  for (const WeightFormat weights : {WeightFormat::bf16, WeightFormat::int8}) {
    SCOPED_TRACE(name(weights));
    ModelRunner runner(model_, {.isa = best_cpu_isa(), .weights = weights});
    const Adapter loaded = load(runner, path);
    EXPECT_LT(loaded->bytes(), of_exact->bytes());
    const double error = largest_difference(runner.sequence(tokens, 60, loaded.get()), adapted);
    EXPECT_LT(error, largest_difference(adapted, plain) / 10);
    EXPECT_EQ(loaded->fingerprint(), of_exact->fingerprint());
  }
}

// ---- files

// Writes the adapter in `peft` as convert_lora_to_gguf.py does.
void write_gguf_adapter(const std::filesystem::path& peft, const std::filesystem::path& file,
                        const ModelConfig& config, float alpha) {
  const Architecture& architecture = architecture_of(config);
  GgufBytes bytes;
  bytes.text("general.type", "adapter");
  bytes.text("general.architecture", architecture.gguf.name);
  bytes.text("adapter.type", "lora");
  bytes.f32("adapter.lora.alpha", alpha);
  const SafetensorsFile source = SafetensorsFile::open(peft / "adapter_model.safetensors").value();
  for (const auto& [name, tensor] : source.tensors()) {
    const bool is_b = name.find(".lora_B.") != std::string::npos;
    const std::string module = name.substr(17, name.find(".lora_") - 17) + ".weight";
    const std::string own = gguf_name(module, architecture) + (is_b ? ".lora_b" : ".lora_a");
    const std::string raw(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    const bool paired = architecture.gguf.interleaves_heads && is_b && is_rotated(own);
    bytes.tensor(own, std::vector<uint64_t>(tensor.shape.rbegin(), tensor.shape.rend()), 0,
                 paired ? paired_rows(raw, tensor.shape[0], config.head_dim) : raw);
  }
  std::ofstream(file, std::ios::binary) << bytes.file();
}

TEST_F(LoraTest, AGgufFileHasTheBitsOfPeftsDirectory) {
  for (const char* model : {"llama", "qwen2", "phi3"}) {
    SCOPED_TRACE(model);
    std::filesystem::remove_all(model_);
    write_model(model);
    const std::filesystem::path peft = adapter("peft");
    write_gguf_adapter(peft, directory_.path() / "adapter.gguf", config_, 8);
    ModelRunner runner(model_, {.isa = best_cpu_isa()});
    const std::vector<int32_t> tokens = random_tokens(40, config_.vocab, 1);
    const Adapter expected = load(runner, peft);
    const Adapter found = load(runner, directory_.path() / "adapter.gguf");
    EXPECT_EQ(runner.sequence(tokens, 40, found.get()),
              runner.sequence(tokens, 40, expected.get()));
  }
}

TEST_F(LoraTest, IsMeasuredBeforeItIsLoaded) {
  write_model("phi3");
  const std::filesystem::path path = adapter("some");
  for (const WeightFormat weights : {WeightFormat::f32, WeightFormat::int8}) {
    ModelRunner runner(model_, {.weights = weights});
    const auto measured = runner.model().measure_adapter(path);
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_EQ(*measured, load(runner, path)->bytes());
  }
}

TEST_F(LoraTest, AnotherScaleOrMatrixIsAnotherFingerprint) {
  write_model("llama");
  ModelRunner runner(model_, {});
  std::set<std::string> found;
  found.insert(load(runner, adapter("a"))->fingerprint());
  EXPECT_EQ(found.count(load(runner, adapter("again"))->fingerprint()), 1U);
  found.insert(load(runner, adapter("b", {.seed = 2}))->fingerprint());
  found.insert(load(runner, adapter("c", {.alpha = 9}))->fingerprint());
  found.insert(load(runner, adapter("d", {.stabilised = true}))->fingerprint());
  found.insert(load(runner, adapter("e", {.slots = {WeightSlot::qkv}}))->fingerprint());
  EXPECT_EQ(found.size(), 5U);
}

// ---- refusals

class LoraRefusal : public LoraTest {
 protected:
  absl::Status status_of(const json& config, const std::vector<NamedTensor>& tensors) {
    const std::filesystem::path path = directory_.path() / "refused";
    std::filesystem::remove_all(path);
    write_adapter(path, config, tensors);
    return runner_->model().load_adapter(path).status();
  }
  absl::Status with_field(const char* key, const json& value) {
    json config = adapter_config({});
    config[key] = value;
    return status_of(config, random_pairs(config_, {}));
  }
  absl::Status with_tensor(const std::string& tensor, TensorShape shape) {
    std::mt19937 random(1);
    std::vector<NamedTensor> tensors = random_pairs(config_, {});
    std::erase_if(tensors, [&](const NamedTensor& other) { return other.name == tensor; });
    tensors.push_back(random_matrix(tensor, std::move(shape), TensorType::f32, random));
    return status_of(adapter_config({}), tensors);
  }
  std::unique_ptr<ModelRunner> runner_ = [this] {
    write_model("llama");
    return std::make_unique<ModelRunner>(model_, ModelRunner::Options{});
  }();
};

TEST_F(LoraRefusal, NamesASettingThatChangesMoreThanMatrices) {
  const std::vector<std::pair<const char*, json>> refused = {
      {"modules_to_save", {"lm_head"}},
      {"use_dora", true},
      {"lora_bias", true},
      {"bias", "lora_only"},
      {"fan_in_fan_out", true},
      {"rank_pattern", {{"q_proj", 2}}},
      {"alpha_pattern", {{"q_proj", 2}}},
      {"layer_replication", {{0, 1}}},
      {"trainable_token_indices", {1, 2}},
      {"target_parameters", {"mlp.experts.gate_up_proj"}},
      {"alora_invocation_tokens", {5}},
      {"init_lora_weights", "pissa_niter_4"},
      {"peft_type", "IA3"}};
  for (const auto& [key, value] : refused) {
    const absl::Status status = with_field(key, value);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << key << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string("adapter_config.json: ") + key));
  }
}

TEST_F(LoraRefusal, NamesAFieldOutOfItsRange) {
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{
           {"r", 0}, {"r", 257}, {"r", "4"}, {"lora_alpha", nullptr}, {"lora_alpha", "8"}}) {
    const absl::Status status = with_field(key, value);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(key));
  }
}

TEST_F(LoraRefusal, NamesAModuleThatAdaptersCannotChange) {
  const std::string base = "base_model.model.";
  for (const char* name :
       {"model.embed_tokens.lora_embedding_A", "lm_head.lora_A.weight",
        "model.layers.0.input_layernorm.lora_A.weight",
        "model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "model.layers.0.self_attn.q_proj.lora_B.bias", "lm_head.modules_to_save.weight"}) {
    std::vector<NamedTensor> tensors = random_pairs(config_, {});
    std::mt19937 random(1);
    tensors.push_back(random_matrix(base + name, {4, 4}, TensorType::f32, random));
    if (std::string(name).find("lora_A.weight") != std::string::npos) {
      std::string b = name;
      b.replace(b.find("lora_A"), 6, "lora_B");
      tensors.push_back(random_matrix(base + b, {4, 4}, TensorType::f32, random));
    }
    const absl::Status status = status_of(adapter_config({}), tensors);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name << ": " << status;
    const std::string module = std::string(name).substr(0, std::string(name).find(".lora_"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(module));
  }
}

TEST_F(LoraRefusal, NamesAMatrixOfAnotherModel) {
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
  EXPECT_THAT(std::string(with_tensor(q + "A.weight", {4, 47}).message()),
              HasSubstr("q_proj\": A has shape [4, 47], expected [4, 48]"));
  EXPECT_THAT(std::string(with_tensor(q + "B.weight", {65, 4}).message()),
              HasSubstr("q_proj\": B has shape [65, 4], expected [64, 4]"));
  EXPECT_THAT(std::string(with_tensor(q + "A.weight", {5, 48}).message()),
              HasSubstr("has shape [5, 48], but r is 4"));
  const std::string beyond = "base_model.model.model.layers.2.self_attn.q_proj.lora_";
  EXPECT_THAT(std::string(with_tensor(beyond + "A.weight", {4, 48}).message()),
              HasSubstr("layers.2.self_attn.q_proj\": has A without B"));
  RandomAdapter deeper;
  ModelConfig config = config_;
  config.layers = 3;
  EXPECT_THAT(
      std::string(status_of(adapter_config(deeper), random_pairs(config, deeper)).message()),
      HasSubstr("layers.2.mlp.down_proj\": the model has no such linear module"));
}

TEST_F(LoraRefusal, NamesAValueThatIsNotFinite) {
  std::vector<NamedTensor> tensors = random_pairs(config_, {});
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(tensors.back().bytes.data() + 8, &infinite, 4);
  EXPECT_THAT(std::string(status_of(adapter_config({}), tensors).message()),
              HasSubstr("holds a value that is not finite"));
}

TEST_F(LoraRefusal, SaysWhatADirectoryLacks) {
  const std::filesystem::path path = directory_.path() / "lacking";
  EXPECT_EQ(runner_->model().load_adapter(path).status().code(), absl::StatusCode::kNotFound);
  write_random_adapter(path, config_);
  std::filesystem::rename(path / "adapter_model.safetensors", path / "adapter_model.bin");
  EXPECT_THAT(std::string(runner_->model().load_adapter(path).status().message()),
              HasSubstr("save the adapter with safe_serialization"));
}

TEST_F(LoraRefusal, SaysWhatAGgufFileIs) {
  const std::filesystem::path file = directory_.path() / "adapter.gguf";
  const auto status_with = [&](const char* type, const char* adapter, const char* architecture) {
    GgufBytes bytes;
    bytes.text("general.type", type);
    bytes.text("adapter.type", adapter);
    bytes.text("general.architecture", architecture);
    bytes.f32("adapter.lora.alpha", 8);
    std::ofstream(file, std::ios::binary) << bytes.file();
    return std::string(runner_->model().load_adapter(file).status().message());
  };
  EXPECT_THAT(status_with("model", "", "llama"), HasSubstr("general.type is \"model\""));
  EXPECT_THAT(status_with("adapter", "control", "llama"), HasSubstr("adapter.type \"control\""));
  EXPECT_THAT(status_with("adapter", "lora", "qwen2"), HasSubstr("but the model is a LlamaFor"));
  EXPECT_THAT(status_with("adapter", "lora", "llama"), HasSubstr("has no matrices"));
}

}  // namespace
}  // namespace tessera
