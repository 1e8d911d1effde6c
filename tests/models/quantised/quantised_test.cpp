// Quantised safetensors checkpoints, against the methods' own packages and transformers
// (golden.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_format.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/read_model_config.h"
#include "models/weights/weights.h"
#include "tests/models/model_runner.h"
#include "tests/models/quantised/quantised_checkpoint.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr double kFromTransformers = 1e-4;  // of the largest logit

const json& golden() {
  static const json read = json::parse(
      read_file(std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/quantised.json"));
  return read;
}

const json& golden_case(const std::string& name) {
  return *std::ranges::find_if(golden().at("cases"),
                               [&](const json& one) { return one.at("name") == name; });
}

const Backend& plain_loops() {
  return cpu_backend(CpuIsa::scalar);
}

class Quantised : public testing::Test {
 protected:
  void write(const QuantisedCheckpoint& checkpoint) { checkpoint.write(directory_.path()); }

  // Loads the files written last.
  absl::StatusOr<Weights> load(std::optional<WeightFormat> format = {}, Shard shard = {},
                               int32_t threads = 1) {
    const auto config = read_model_config(directory_.path());
    if (!config.ok()) return config.status();
    auto opened = Checkpoint::open(directory_.path());
    if (!opened.ok()) return opened.status();
    checkpoint_.emplace(*std::move(opened));
    return Weights::load(*config, shard, *checkpoint_, format, plain_loops(), {.threads = threads});
  }

  void expect_refused(const std::string& why) {
    const auto weights = load();
    ASSERT_FALSE(weights.ok());
    EXPECT_THAT(std::string(weights.status().message()),
                AllOf(HasSubstr(directory_.path().string()), HasSubstr(why)));
  }

  TemporaryDirectory directory_;
  std::optional<Checkpoint> checkpoint_;
};

TEST_F(Quantised, TensorsArePackedHereAsTheirPackagesPackThem) {
  for (const json& one : golden().at("cases")) {
    SCOPED_TRACE(one.at("name"));
    QuantisedCheckpoint checkpoint(one);
    for (const auto& [suffix, hashes] : one.at("packed").items()) {
      for (size_t i = 0; i < std::size(kQuantisedModules); ++i) {
        const NamedTensor& tensor =
            checkpoint.tensor(std::string(kQuantisedModules[i].name) + "." + suffix);
        EXPECT_EQ(fnv_of(tensor.bytes), hashes.at(i)) << tensor.name;
      }
    }
  }
}

TEST_F(Quantised, WeightsAreReadToTheBitsOfTheirPackages) {
  for (const json& one : golden().at("cases")) {
    SCOPED_TRACE(one.at("name"));
    write(QuantisedCheckpoint(one));
    const auto checkpoint = Checkpoint::open(directory_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (size_t i = 0; i < std::size(kQuantisedModules); ++i) {
      const QuantisedModule& module = kQuantisedModules[i];
      const auto stored =
          checkpoint->tensor(weight_name(module), TensorShape{module.rows, module.cols});
      ASSERT_TRUE(stored.ok()) << stored.status();
      std::vector<float> found(static_cast<size_t>(module.rows * module.cols));
      read_f32(**stored, 0, found);
      EXPECT_EQ(fnv_of(std::as_bytes(std::span(found))), one.at("weights").at(i)) << module.name;
      std::vector<float> part(200);
      read_f32(**stored, 333, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), found.begin() + 333)) << module.name;
    }
  }
}

TEST_F(Quantised, ScalesOfOutputsMayBeAVector) {
  QuantisedCheckpoint written(golden_case("w8a8"));
  written.tensor("mlp.up_proj.weight_scale").shape = {256};
  write(written);
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto stored = checkpoint->tensor(weight_name(kQuantisedModules[5]), TensorShape{256, 128});
  ASSERT_TRUE(stored.ok()) << stored.status();
  std::vector<float> found(256 * 128);
  read_f32(**stored, 0, found);
  EXPECT_EQ(found, written.numbers()[5].weights());
}

// Rows of a packed weight in the order of its inputs.
std::vector<float> look_up(const PackedWeight& weight) {
  std::vector<int32_t> rows(static_cast<size_t>(weight.rows));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> found(static_cast<size_t>(weight.rows * weight.cols));
  ThreadPool pool(1);
  plain_loops().embed({.tokens = rows,
                       .packed = &weight,
                       .out = {found.data(), weight.rows, weight.cols, weight.cols}},
                      pool.stream());
  if (weight.input_order == nullptr) return found;
  std::vector<float> ordered(found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const size_t col = i % static_cast<size_t>(weight.cols);
    ordered[i - col + static_cast<size_t>(weight.input_order[col])] = found[i];
  }
  return ordered;
}

TEST_F(Quantised, WeightsAreKeptWithTheIntegersOfTheFile) {
  for (const json& one : golden().at("cases")) {
    SCOPED_TRACE(one.at("name"));
    const QuantisedCheckpoint checkpoint(one);
    write(checkpoint);
    const auto weights = load({}, {}, 3);
    ASSERT_TRUE(weights.ok()) << weights.status();
    RecordProperty(one.at("name"), weights->formats());
    const LayerWeights& layer = weights->views().layers[0];
    const PackedWeight& down = layer.down.front().parts[0];
    if (is_fp8(down.format)) continue;  // its rows are not looked up
    EXPECT_EQ(look_up(down), checkpoint.numbers()[6].weights());
    const auto gate = checkpoint.numbers()[4].weights();
    const auto up = checkpoint.numbers()[5].weights();
    std::vector<float> both = look_up(layer.gate_up.front().parts[0]);
    if (layer.gate_up.front().count == 2) {  // inputs in another order
      const auto second = look_up(layer.gate_up.front().parts[1]);
      both.insert(both.end(), second.begin(), second.end());
    }
    EXPECT_TRUE(std::equal(gate.begin(), gate.end(), both.begin()));
    EXPECT_TRUE(std::equal(up.begin(), up.end(), both.end() - std::ssize(up)));
  }
}

double from_transformers(ModelRunner& runner, const json& one) {
  const auto logits = runner.sequence(golden().at("tokens").get<std::vector<int32_t>>(), 128);
  double difference = 0;
  double largest = 0;
  for (size_t i = 0; i < golden().at("positions").size(); ++i) {
    const auto& row = logits.at(golden().at("positions")[i].get<size_t>());
    const auto expected = one.at("logits").at(i).get<std::vector<double>>();
    for (size_t token = 0; token < expected.size(); ++token) {
      difference = std::max(difference, std::fabs(row.at(token) - expected[token]));
      largest = std::max(largest, std::fabs(expected[token]));
    }
  }
  return difference / largest;
}

TEST_F(Quantised, ModelsHaveTheLogitsOfTransformers) {
  for (const json& one : golden().at("cases")) {
    SCOPED_TRACE(one.at("name"));
    write(QuantisedCheckpoint(one));
    ModelRunner exact(directory_.path(), {.isa = best_cpu_isa()});
    EXPECT_LT(from_transformers(exact, one), kFromTransformers);
    // Activations are rounded: to int8 in blocks, or to E4M3, which has 4 significant bits.
    const bool fp8 = one.at("case").value("fp8", false);
    for (const CpuIsa isa : cpu_isas()) {
      SCOPED_TRACE(name(isa));
      ModelRunner stored(directory_.path(), {.isa = isa, .weights = std::nullopt});
      const double difference = from_transformers(stored, one);
      RecordProperty(one.at("name").get<std::string>() + "_" + std::string(name(isa)),
                     std::to_string(difference));
      EXPECT_LT(difference, fp8 ? 0.1 : 0.02);
      EXPECT_GT(difference, kFromTransformers);
      const auto tokens = golden().at("tokens").get<std::vector<int32_t>>();
      EXPECT_EQ(stored.sequence(tokens, 5), stored.sequence(tokens, 128));
    }
  }
}

TEST_F(Quantised, WeightsAreSharedByRanksBetweenGroups) {
  write(QuantisedCheckpoint(golden_case("awq")));
  const auto second = load({}, {.rank = 1, .ranks = 2});  // 128 of 256 inputs
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr("o_proj"), HasSubstr("blocks of 128")));
  const QuantisedCheckpoint small(golden_case("w4a16_asymmetric"));
  write(small);
  const auto weights = load({}, {.rank = 1, .ranks = 2});
  ASSERT_TRUE(weights.ok()) << weights.status();
  const std::vector<float> found = look_up(weights->views().layers[0].down.front().parts[0]);
  const std::vector<float> all = small.numbers()[6].weights();
  for (size_t row = 0; row < 128; ++row) {
    ASSERT_TRUE(std::equal(found.begin() + static_cast<ptrdiff_t>(row * 128),
                           found.begin() + static_cast<ptrdiff_t>(row * 128 + 128),
                           all.begin() + static_cast<ptrdiff_t>(row * 256 + 128)));
  }
  write(QuantisedCheckpoint(golden_case("gptq_act_order")));
  EXPECT_THAT(std::string(load({}, {.rank = 0, .ranks = 2}).status().message()),
              AllOf(HasSubstr("o_proj"), HasSubstr("act-order")));
}

TEST_F(Quantised, BiasesOfZerosAreIgnoredAndOthersAreNot) {
  for (const float value : {0.0f, 0.5f}) {
    QuantisedCheckpoint checkpoint(golden_case("gptq"));
    checkpoint.tensors().push_back(floats_tensor("model.layers.0.mlp.down_proj.bias", {128},
                                                 TensorType::f16, std::vector<float>(128, value)));
    write(checkpoint);
    const auto weights = load();
    EXPECT_EQ(weights.ok(), value == 0) << weights.status();
    EXPECT_THAT(std::string(weights.status().message()),
                HasSubstr(value == 0 ? "" : "down_proj.bias"));
  }
}

TEST_F(Quantised, WeightsCanBeConverted) {
  write(QuantisedCheckpoint(golden_case("gptq_act_order")));
  const auto weights = load(WeightFormat::int8);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->formats(), "int8");
  EXPECT_EQ(weights->views().embedding_packed.format, WeightFormat::f16);  // the table's own
}

std::string document() {
  return read_file(std::filesystem::path(TESSERA_SOURCE_DIR) / "docs/weights.md");
}

// Bits of weights here and in the file, as docs/weights.md has them.
TEST(QuantisedBytes, AreWithinFivePercentOfTheFileAndInTheDocument) {
  constexpr int64_t kWidth = 4096;
  const std::string text = document();
  const auto check = [&](WeightFormat format, double file) {
    const auto here =
        8.0 * static_cast<double>(plain_loops().packed_weight_bytes(format, kWidth, kWidth)) /
        (kWidth * kWidth);
    EXPECT_LT(here / file, 1.05) << name(format);
    EXPECT_GE(here / file, 1.0) << name(format);
    EXPECT_THAT(text, HasSubstr(absl::StrFormat("| %s | %.3f | %.3f |", std::string(name(format)),
                                                file, here)));
  };
  constexpr double kOutputs = kWidth;
  for (int i = 0; i <= static_cast<int>(TensorType::q6_k); ++i) {
    const auto type = static_cast<TensorType>(i);
    if (!is_quantized(type)) continue;
    check(weight_format(type),
          8.0 * static_cast<double>(block_bytes(type)) / static_cast<double>(block_values(type)));
    EXPECT_THAT(text, HasSubstr("| " + std::string(name(type)) + " |"));
  }
  for (const WeightFormat format : kCodedFormats) {
    const WeightEncoding stored = encoding(format);
    if (stored.group == 0) continue;
    const auto inputs = static_cast<double>(std::min(stored.group, kWidth));
    check(format, static_cast<double>(stored.bits) + (stored.zero ? 20 : 16) / inputs);
  }
  check(WeightFormat::fp8, 8 + 16 / kOutputs);
  check(WeightFormat::fp8_group128, 8 + 32.0 / (128 * 128));
}

struct Refusal {
  const char* name;        // of the case that is changed
  const char* patch;       // a JSON merge patch on its quantization_config
  const char* words;       // of the message
  bool documented = true;  // in docs/weights.md
};

TEST_F(Quantised, MethodsThatAreNotSupportedAreRefusedByName) {
  constexpr Refusal kRefusals[] = {
      {"awq", R"({"quant_method": "bitsandbytes"})", "quant_method \"bitsandbytes\""},
      {"awq", R"({"quant_method": null})", "quant_method", false},
      {"awq", R"({"version": "gemv"})", "version \"gemv\""},
      {"awq", R"({"bits": 8})", "bits 8 is not supported; supported are 4"},
      {"awq", R"({"zero_point": false})", "zero_point false"},
      {"awq", R"({"group_size": 256})", "group_size 256"},
      {"gptq", R"({"bits": 3})", "bits 3"},
      {"gptq", R"({"checkpoint_format": "marlin"})", "checkpoint_format \"marlin\""},
      {"w4a16_groups_of_128", R"({"format": "marlin-24"})", "format \"marlin-24\""},
      {"w4a16_groups_of_128", R"({"format": "nvfp4-pack-quantized"})", "nvfp4-pack-quantized"},
      {"w4a16_groups_of_128", R"({"config_groups": {"group_0": {"weights": {"num_bits": 2}}}})",
       "num_bits 2"},
      {"w4a16_groups_of_128", R"({"sparsity_config": {"format": "sparse-24-bitmask"}})",
       "sparse-24-bitmask"},
      {"fp8_blocks", R"({"weight_block_size": [64, 64]})", "weight_block_size [64, 64]"},
      {"fp8_blocks", R"({"fmt": "e5m2"})", "fmt \"e5m2\""}};
  for (const Refusal& refusal : kRefusals) {
    SCOPED_TRACE(refusal.words);
    QuantisedCheckpoint checkpoint(golden_case(refusal.name));
    checkpoint.quantization().merge_patch(json::parse(refusal.patch));
    write(checkpoint);
    expect_refused(refusal.words);
    expect_refused("quantization_config");
    if (refusal.documented) {
      EXPECT_THAT(document(), HasSubstr("`" + std::string(refusal.words) + "`"));
    }
  }
}

TEST_F(Quantised, DamagedTensorsAreRefusedByName) {
  const std::string module = "mlp.down_proj";
  const auto damaged = [&](const char* name, const auto& damage, const std::string& words) {
    SCOPED_TRACE(words);
    QuantisedCheckpoint checkpoint(golden_case(name));
    damage(checkpoint);
    write(checkpoint);
    expect_refused(words);
    expect_refused(module);
  };
  const auto remove = [&](const std::string& suffix) {
    return [&, suffix](QuantisedCheckpoint& one) { one.tensor(module + suffix).name += "_gone"; };
  };
  const auto put = [&](const std::string& suffix, auto value) {
    return [&, suffix, value](QuantisedCheckpoint& one) {
      std::memcpy(one.tensor(module + suffix).bytes.data(), &value, sizeof(value));
    };
  };
  damaged("awq", remove(".scales"), "misses its tensor scales");
  damaged("w4a16_asymmetric", remove(".weight_shape"), "weight_shape");
  damaged(
      "gptq",
      [&](QuantisedCheckpoint& one) {
        one.tensor(module + ".scales").shape = {1, 256};
      },
      "scales: have shape [1, 256], expected [2, 128]");
  damaged(
      "awq",
      [&](QuantisedCheckpoint& one) {
        one.tensor(module + ".qweight").type = TensorType::f32;
        one.tensor(module + ".qweight").name += "s";
      },
      "down_proj");
  damaged("gptq", put(".scales", uint16_t{0x7c00}), "not finite");
  damaged("fp8_blocks", put(".weight_scale_inv", uint32_t{0x7f800000}), "not finite");
  damaged("fp8_blocks", put(".weight", uint8_t{0xff}), "not finite");
  damaged("gptq_act_order", put(".g_idx", int32_t{7}), "g_idx");
  damaged("gptq_act_order", put(".g_idx", int32_t{-1}), "g_idx");
  damaged("gptq_v2_8_bits", put(".qzeros", uint32_t{0x80808081}),
          "8 bits in groups of all inputs with zero points");
  damaged(
      "w4a16_asymmetric",
      [&](QuantisedCheckpoint& one) {
        NamedTensor& scales = one.tensor(module + ".weight_scale");
        std::vector<float> values(scales.bytes.size() / 2, 0.1f);
        scales = floats_tensor(scales.name, scales.shape, TensorType::f32, values);
      },
      "scales that f16");
}

// Changes shapes, types, names and bytes of some tensors. A checkpoint loads or is refused.
TEST_F(Quantised, RandomlyDamagedTensorsAreLoadedOrRefused) {
  constexpr int kDamages = 12;  // of each case
  std::mt19937_64 random(20261123);
  int refused = 0;
  for (const json& one : golden().at("cases")) {
    for (int i = 0; i < kDamages; ++i) {
      SCOPED_TRACE(testing::Message() << one.at("name") << ", damage " << i);
      QuantisedCheckpoint checkpoint(one);
      for (uint64_t change = random() % 3; change < 3; ++change) {
        NamedTensor& tensor = checkpoint.tensors()[random() % checkpoint.tensors().size()];
        switch (random() % 5) {
          case 0:
            std::ranges::reverse(tensor.shape);
            break;
          case 1:
            tensor.shape = {std::ssize(tensor.bytes) / bytes_of(tensor.type)};
            break;
          case 2:
            tensor.type = TensorType::u8;
            tensor.shape = {std::ssize(tensor.bytes)};
            break;
          case 3:
            tensor.name += "_of_another";
            break;
          default:
            tensor.bytes[random() % tensor.bytes.size()] = static_cast<std::byte>(random());
        }
      }
      write(checkpoint);
      refused += load().ok() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, kDamages * 3);
}

}  // namespace
}  // namespace tessera
