// Walks the tables of docs/models.md: everything that they say loads, and every refusal has the
// words that they give.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "kernels/cpu/cpu_backend.h"
#include "models/architectures/architecture.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/config_json.h"
#include "models/checkpoint/read_model_config.h"
#include "models/weights/random_checkpoint.h"
#include "models/weights/weights.h"
#include "nlohmann/json.hpp"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"
#include "tests/text/golden.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using Row = std::vector<std::string>;

// Returns: the rows of the table whose first column has this name, without their spaces.
std::vector<Row> table(const std::string& first_column) {
  std::ifstream document(TESSERA_SOURCE_DIR "/docs/models.md");
  std::vector<Row> rows;
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line.rfind("|", 0) != 0) inside = false;
    if (inside && line.rfind("|---", 0) != 0) {
      Row& row = rows.emplace_back();
      for (size_t at = 1; at < line.size();) {
        const size_t end = line.find('|', at);
        row.push_back(line.substr(at + 1, end - at - 2));
        at = end + 1;
      }
    }
    if (line.rfind("| " + first_column + " |", 0) == 0) inside = true;
  }
  EXPECT_FALSE(rows.empty()) << first_column;
  return rows;
}

std::string unquoted(const std::string& code) {
  return code.substr(1, code.size() - 2);
}

const TinyModel& tiny_model_of(const std::string& architecture) {
  static const std::vector<TinyModel> kAll = all_tiny_models();
  return *std::ranges::find_if(
      kAll, [&](const TinyModel& one) { return one.config.architecture == architecture; });
}

TEST(ModelsDocument, ListsTheArchitecturesThatLoadAndTheirWeights) {
  std::set<std::string> listed;
  for (const Row& row : table("architecture")) {
    SCOPED_TRACE(row[0]);
    const std::string name = unquoted(row[0]);
    listed.insert(name);
    const Architecture* found = find_architecture(name);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(row[2], found->gguf.name == nullptr ? "safetensors" : "safetensors, GGUF");
    for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16}) {
      const TemporaryDirectory directory;
      const TinyModel& tiny = tiny_model_of(name);
      ASSERT_TRUE(write_random_checkpoint(directory.path(), tiny.config, 1, type).ok());
      const auto config = read_model_config(directory.path());
      ASSERT_TRUE(config.ok()) << config.status();
      const auto checkpoint = Checkpoint::open(directory.path());
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      const auto weights =
          Weights::load(*config, {}, *checkpoint, std::nullopt, cpu_backend(CpuIsa::scalar));
      EXPECT_TRUE(weights.ok()) << weights.status();
    }
  }
  std::set<std::string> supported;
  for (const Architecture& one : supported_architectures()) supported.insert(one.name);
  EXPECT_EQ(listed, supported);
}

TEST(ModelsDocument, NamesTokenizersThatLoad) {
  std::set<std::string> files;
  for (const Row& row : table("file")) files.insert(unquoted(row[0]));
  for (const Row& row : table("architecture")) {
    for (size_t at = row[3].find('`'); at != std::string::npos;) {
      const size_t end = row[3].find('`', at + 1);
      EXPECT_TRUE(files.contains(row[3].substr(at + 1, end - at - 1))) << row[3];
      at = row[3].find('`', end + 1);
    }
  }
  const auto golden =
      nlohmann::json::parse(read_file(TESSERA_SOURCE_DIR "/tests/golden/tokenizers.json"));
  for (const auto& [kind, entry] : golden.items()) {
    const auto file = entry.at("file").get<std::string>();
    EXPECT_TRUE(files.contains(file)) << file;
    const TemporaryDirectory directory;
    write_file(directory / file, tokenizer_content(entry));
    EXPECT_TRUE(Tokenizer::load(directory.path()).ok()) << kind;
  }
}

TEST(ModelsDocument, QuotesTheRefusals) {
  for (const Row& row : table("found")) {
    SCOPED_TRACE(row[0]);
    const std::string found = unquoted(row[0]);
    std::string message;
    if (found.find('.') == std::string::npos) {
      const nlohmann::json config = {{"architectures", {found}}};
      message = std::string(parse_model_config(config.dump(), "").status().message());
      EXPECT_THAT(message, HasSubstr(found));
    } else {
      const TemporaryDirectory directory;
      write_file(directory / "config.json", model_config_json(tiny_llama_config()));
      write_file(directory / found, "x");
      message = std::string(Checkpoint::open(directory.path()).status().message());
      EXPECT_THAT(message, HasSubstr(found));
    }
    EXPECT_THAT(message, HasSubstr(row[1]));
  }
}

}  // namespace
}  // namespace tessera
