// Thousands of damaged GGUF files. Opening any file must give a result or an error, and every model
// that opens must be readable. Run it under ASan.

#include <gtest/gtest.h>

#include <random>

#include "kernels/cpu/cpu_backend.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/read_model_config.h"
#include "models/weights/random_checkpoint.h"
#include "models/weights/weights.h"
#include "tests/models/gguf/gguf_checkpoint.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

constexpr int kCases = 10'000;

std::string small_model(const std::filesystem::path& folder) {
  ModelConfig config = tiny_llama_config();
  config.vocab = 5;
  config.hidden = 8;
  config.heads = config.kv_heads = 1;
  config.head_dim = 8;
  config.ffn = 8;
  config.layers = 1;
  EXPECT_TRUE(write_random_checkpoint(folder, config, 1, TensorType::bf16).ok());
  GgufBytes bytes = gguf_metadata(config, "llama");
  bytes.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "smollm");
  bytes.texts("tokenizer.ggml.tokens", {"a", "b", "<|im_end|>", "ab", "c"});
  bytes.numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 1, 3, 1, 1});
  bytes.texts("tokenizer.ggml.merges", {"a b"});
  add_tensors(config, folder, bytes);
  return bytes.file();
}

// Changes a few bytes, mostly in front of the tensors' data. Sometimes cuts, repeats or moves a
// range.
std::string damaged(std::string file, size_t front, std::mt19937_64& random) {
  const auto place = [&] { return random() % (random() % 8 == 0 ? file.size() : front); };
  const int changes = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < changes && !file.empty(); ++i) {
    const size_t at = std::min<size_t>(place(), file.size() - 1);
    switch (random() % 8) {
      case 0:
        file.resize(at);
        break;
      case 1:
        file.erase(at, random() % 16);
        break;
      case 2:
        file.insert(at, file.substr(std::min<size_t>(place(), file.size()), random() % 64));
        break;
      case 3:
        file[at] = static_cast<char>(0xff);
        break;
      case 4:
        file[at] = static_cast<char>(random() % 16);
        break;
      default:
        file[at] = static_cast<char>(random());
        break;
    }
  }
  return file;
}

TEST(GgufFuzz, DamageIsAStatusOrAReadableModel) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "model.gguf";
  const std::string whole = small_model(directory / "hf");
  const size_t front = whole.size() - 1000;
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  const TextSegment segments[] = {{"abba<|im_end|>", true}};
  int opened = 0;
  int loaded = 0;
  int encoded = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    write_file(path, damaged(whole, front, random));
    if (const auto tokenizer = Tokenizer::load(path); tokenizer.ok()) {
      encoded += (*tokenizer)->encode(segments, true).empty() ? 0 : 1;
    }
    const auto checkpoint = Checkpoint::open(path);
    if (!checkpoint.ok()) {
      EXPECT_FALSE(checkpoint.status().message().empty());
      continue;
    }
    ++opened;
    const auto config = read_model_config(path);
    ASSERT_TRUE(config.ok()) << config.status();
    loaded += Weights::load(*config, {}, *checkpoint, WeightFormat::int8, backend).ok() ? 1 : 0;
  }
  // All outcomes must occur for the test to be meaningful.
  RecordProperty("opened", opened);
  RecordProperty("loaded", loaded);
  RecordProperty("encoded", encoded);
  EXPECT_GT(opened, kCases / 100);
  EXPECT_GT(loaded, kCases / 1000);
  EXPECT_GT(encoded, kCases / 100);
  EXPECT_LT(opened, kCases * 9 / 10);
}

}  // namespace
}  // namespace tessera
