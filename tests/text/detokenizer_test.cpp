#include "text/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "tests/shared_data.h"
#include "tests/text/golden.h"

namespace tessera {
namespace {

// Token n is the n-th of these strings; "<s>" is special.
class TableTokenizer final : public Tokenizer {
 public:
  TableTokenizer(std::vector<std::string> table, bool strips)
      : table_(std::move(table)), strips_(strips) {}

  std::vector<int32_t> encode(std::span<const TextSegment>, bool) const override { return {}; }
  std::string token_bytes(int32_t id, bool keep_special) const override {
    const std::string& bytes = table_[static_cast<size_t>(id)];
    return bytes == "<s>" && !keep_special ? std::string() : bytes;
  }
  bool strips_leading_space() const override { return strips_; }
  bool is_special(int32_t id) const override { return table_[static_cast<size_t>(id)] == "<s>"; }
  std::optional<int32_t> special_id(std::string_view) const override { return std::nullopt; }
  int32_t vocab_size() const override { return static_cast<int32_t>(table_.size()); }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::optional<int32_t> eos_id() const override { return std::nullopt; }

 private:
  std::vector<std::string> table_;
  bool strips_;
};

std::vector<std::string> push_all(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                  Detokenizer::Options options = {}) {
  Detokenizer detokenizer(tokenizer, options);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(detokenizer.push(id));
  pieces.push_back(detokenizer.finish());
  return pieces;
}

using testing::ElementsAre;

TEST(Detokenizer, HoldsACharacterBackUntilItIsWhole) {
  const TableTokenizer tokenizer({"\xF0", "\x9F",
                                  "\x98\x80"
                                  "!",
                                  "a"},
                                 false);
  EXPECT_THAT(push_all(tokenizer, {3, 0, 1, 2}), ElementsAre("a", "", "", "😀!", ""));
}

TEST(Detokenizer, ReplacesBytesThatCanNeverBeACharacter) {
  const TableTokenizer tokenizer({"\xF0\x9F", "a", "\x80", "\xC0", "\xED\xA0\x80"}, false);
  EXPECT_THAT(push_all(tokenizer, {0, 1}), ElementsAre("", "\uFFFDa", ""));
  EXPECT_THAT(push_all(tokenizer, {2, 3}), ElementsAre("\uFFFD", "\uFFFD", ""));
  EXPECT_THAT(push_all(tokenizer, {4}), ElementsAre("\uFFFD\uFFFD\uFFFD", ""));
  EXPECT_THAT(push_all(tokenizer, {1, 0}), ElementsAre("a", "", "\uFFFD"));
}

TEST(Detokenizer, DropsTheDummyPrefixOfTheFirstTextOnly) {
  const TableTokenizer strips({" a", "<s>", " "}, true);
  EXPECT_THAT(push_all(strips, {1, 0, 0}), ElementsAre("", "a", " a", ""));
  EXPECT_THAT(push_all(strips, {2, 0}), ElementsAre("", " a", ""));
  EXPECT_THAT(push_all(strips, {0}, {false, true}), ElementsAre(" a", ""));
  EXPECT_THAT(push_all(strips, {1, 0}, {true, false}), ElementsAre("<s>", " a", ""));
  const TableTokenizer keeps({" a"}, false);
  EXPECT_THAT(push_all(keeps, {0}), ElementsAre(" a", ""));
}

TEST(Detokenizer, GivesEveryGoldenTextBackTokenByToken) {
  const std::pair<const char*, const char*> vocabularies[] = {
      {"llama2_tokenizer.model", "golden-llama-spm.inp"},
      {"gpt2_tokenizer.json", "golden-gpt-2.inp"}};
  for (const auto& [file, golden] : vocabularies) {
    TESSERA_SHARED_DATA_OR_SKIP(path, std::string("tokenizers/") + file);
    const auto folder = scratch_folder("detokenize");
    std::filesystem::copy(
        path, folder / (path.extension() == ".json" ? "tokenizer.json" : "tokenizer.model"));
    const auto tokenizer = Tokenizer::load(folder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (const GoldenCase& one : read_golden(*shared_data(std::string("tokenizers/") + golden))) {
      std::string text;
      for (const std::string& part : push_all(**tokenizer, one.ids)) {
        EXPECT_TRUE(is_valid_utf8(part)) << one.text;
        text += part;
      }
      EXPECT_EQ(text, one.text);
    }
  }
}

TEST(Detokenizer, NeverEmitsInvalidUtf8) {
  TESSERA_SHARED_DATA_OR_SKIP(path, "tokenizers/llama2_tokenizer.model");
  const auto folder = scratch_folder("random-ids");
  std::filesystem::copy(path, folder / "tokenizer.model");
  const auto tokenizer = Tokenizer::load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<int32_t> ids;
    for (int i = 0; i < 100; ++i) {
      const bool byte = random() % 2 == 0;  // ids 3 to 258 are bytes
      ids.push_back(static_cast<int32_t>(byte ? 3 + random() % 256 : random() % 32100));
    }
    std::string joined;
    for (const int32_t id : ids) joined += (*tokenizer)->token_bytes(id, false);
    std::string text;
    for (const std::string& part : push_all(**tokenizer, ids, {false, true})) {
      ASSERT_TRUE(is_valid_utf8(part));
      text += part;
    }
    EXPECT_EQ(text, repair_utf8(joined));
  }
}

TEST(Detokenizer, GivesRandomTextBack) {
  TESSERA_SHARED_DATA_OR_SKIP(path, "tokenizers/gpt2_tokenizer.json");
  const auto folder = scratch_folder("random-text");
  std::filesystem::copy(path, folder / "tokenizer.json");
  const auto tokenizer = Tokenizer::load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::string text;
    for (int i = 0; i < 50; ++i) {
      const char32_t limits[] = {0x80, 0x800, 0xD800, 0x110000};
      const char32_t limit = limits[random() % 4];
      const char32_t character = static_cast<char32_t>(random()) % limit;
      if (character < 0xD800 || character > 0xDFFF) append_utf8(text, character);
    }
    std::string back;
    for (const std::string& part : push_all(**tokenizer, encode_plain(**tokenizer, text))) {
      EXPECT_TRUE(is_valid_utf8(part));
      back += part;
    }
    EXPECT_EQ(back, text);
  }
}

}  // namespace
}  // namespace tessera
