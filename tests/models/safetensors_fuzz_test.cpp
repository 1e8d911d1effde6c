// Thousands of damaged files. Opening any file must give a result or an error, and every file that
// opens must be readable. Run it under ASan.

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "files/safetensors.h"
#include "kernels/cpu/cpu_backend.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/config_json.h"
#include "models/checkpoint/read_model_config.h"
#include "models/weights/random_checkpoint.h"
#include "models/weights/weights.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

constexpr int kCases = 20'000;

uint64_t header_end(const std::string& file) {
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof(length));
  return sizeof(length) + length;
}

// Changes a few bytes, mostly of the header. Sometimes cuts, repeats or moves a range.
std::string damaged(std::string file, std::mt19937_64& random) {
  const uint64_t header = header_end(file);
  const auto place = [&] { return random() % (random() % 8 == 0 ? file.size() : header); };
  const int changes = 1 + static_cast<int>(random() % 4);
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
        file[at] = static_cast<char>('0' + random() % 10);
        break;
      case 4:
        file[at] = "[]{}\",:-.eE9"[random() % 12];
        break;
      case 5:
        file.insert(at, std::to_string(random()));
        break;
      default:
        file[at] = static_cast<char>(random());
        break;
    }
  }
  return file;
}

// Reads every element that is readable. The sum prevents the compiler from removing the reads.
double sum_of(const StoredTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / static_cast<size_t>(bytes_of(tensor.type)));
  read_f32(tensor, 0, values);
  double sum = 0;
  for (const float value : values) {
    sum += value;
  }
  return sum;
}

TEST(SafetensorsFuzz, DamageIsAStatusOrAReadableFile) {
  const TemporaryDirectory directory;
  ModelConfig config = tiny_llama_config();
  config.vocab = 5;
  config.hidden = 8;
  config.heads = config.kv_heads = 1;
  config.head_dim = 8;
  config.ffn = 8;
  config.layers = 1;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), config, 1, TensorType::bf16).ok());
  const std::filesystem::path path = directory / "model.safetensors";
  const std::string whole = read_file(path);
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  int opened = 0;
  int loaded = 0;
  volatile double sum = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    write_file(path, damaged(whole, random));
    const auto checkpoint = Checkpoint::open(directory.path());
    if (!checkpoint.ok()) {
      EXPECT_FALSE(checkpoint.status().message().empty());
      continue;
    }
    ++opened;
    const SafetensorsFile file = SafetensorsFile::open(path).value();
    for (const auto& [name, tensor] : file.tensors()) {
      if (is_readable(tensor.type)) {
        sum = sum + sum_of(tensor);
      }
    }
    loaded += Weights::load(config, {}, *checkpoint, WeightFormat::int8, backend).ok() ? 1 : 0;
  }
  // Both outcomes must occur for the test to be meaningful.
  RecordProperty("opened", opened);
  RecordProperty("loaded", loaded);
  EXPECT_GT(opened, kCases / 100);
  EXPECT_GT(loaded, kCases / 1000);
  EXPECT_LT(opened, kCases / 2);
}

TEST(ModelConfigFuzz, DamageIsAStatusOrAConfig) {
  const std::string whole = model_config_json(tiny_llama_config());
  int parsed = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::string text = whole;
    for (uint64_t i = 0; i <= random() % 4; ++i) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text[at] = static_cast<char>('0' + random() % 10);
          break;
        case 2:
          text.insert(at, std::to_string(random() >> (random() % 64)));
          break;
        default:
          text.erase(at, 1 + random() % 3);
          break;
      }
    }
    const auto config = parse_model_config(text, "");
    if (config.ok()) {
      ++parsed;
      EXPECT_GT(
          weight_bytes(*config, WeightFormat::f32, TensorType::f32, cpu_backend(CpuIsa::scalar)),
          0);
    }
  }
  EXPECT_GT(parsed, kCases / 100);
}

}  // namespace
}  // namespace tessera
