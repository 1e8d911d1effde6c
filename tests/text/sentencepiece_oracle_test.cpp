// Compares our reader of sentencepiece models with the library itself.

#include <gtest/gtest.h>

#include <random>

#include "tests/shared_data.h"
#include "tests/text/golden.h"
#include "tests/text/sentencepiece_library.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

std::filesystem::path source(const char* file) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / file;
}

// Returns: valid UTF-8 of words, digits, runs of spaces, line breaks and characters of any length.
std::string random_text(std::mt19937& random) {
  static const char* const kParts[] = {" ",      "  ", "\n",      "\t",     "the",     "Once upon",
                                       "ing",    "a",  "aaaaaaa", "0",      "48213",   ".",
                                       ",\"",    "é",  "ß",       "北京",   "😀",       "▁",
                                       "\u00a0", "‿",  "</s>",    "<0x41>", "<|end|>", "Ł"};
  std::string text;
  for (auto n = random() % 24; n > 0; --n) text += kParts[random() % std::size(kParts)];
  return text;
}

// Compares ids of random texts and of two whole documents with the library's.
void compare(const std::filesystem::path& model) {
  TemporaryDirectory directory;
  std::filesystem::copy(model, directory / "tokenizer.model");
  const auto tokenizer = Tokenizer::load(directory.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const SentencePieceLibrary library(model);
  const auto check = [&](const std::string& text) {
    EXPECT_EQ(encode_plain(**tokenizer, text), library.encode(text)) << '"' << text << '"';
  };
  check("");
  check(read_file(source("README.md")));
  check(read_file(source("tests/text/sentencepiece_oracle_test.cpp")));
  constexpr uint32_t kSeed = 17;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 5000 && !testing::Test::HasFailure(); ++i) check(random_text(random));
}

TEST(SentencePieceOracle, AgreesOnTheShippedModel) {
  compare(source("models/checkpoints/tessera-tiny/tokenizer.model"));
}

TEST(SentencePieceOracle, AgreesOnLlama2) {
  TESSERA_SHARED_DATA_OR_SKIP(model, "tokenizers/llama2_tokenizer.model");
  compare(model);
}

TEST(SentencePieceOracle, AgreesOnMistral) {
  TESSERA_SHARED_DATA_OR_SKIP(model, "tokenizers/mistral_v1_tokenizer.model");
  compare(model);
}

}  // namespace
}  // namespace tessera
