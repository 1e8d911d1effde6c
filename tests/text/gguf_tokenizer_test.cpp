// Tokenizers of GGUF files, against the ids of PyPI's tokenizers and sentencepiece
// (tests/models/gguf/tokenizers_golden.py).

#include "text/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "nlohmann/json.hpp"
#include "tests/models/gguf/gguf_bytes.h"
#include "tests/models/temporary_directory.h"
#include "text/chat_template.h"
#include "text/gguf_patterns.h"
#include "text/nfc.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const json& golden() {
  static const json kFile = json::parse(
      read_file(std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/gguf_tokenizers.json"));
  return kFile;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text,
                            bool parse_special = true, bool add_bos = false) {
  const TextSegment segments[] = {{text, parse_special}};
  return tokenizer.encode(segments, add_bos);
}

std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += tokenizer.token_bytes(id, /*keep_special=*/true);
  return text;
}

// Returns: the text with the parts between its added tokens in NFC.
std::string composed_parts(const std::string& text) {
  std::string all;
  for (size_t from = 0; from < text.size();) {
    const bool token = text[from] == '<';
    const size_t end =
        std::min(token ? text.find('>', from) + 1 : text.find('<', from), text.size());
    const std::string part = text.substr(from, end - from);
    all += token ? part : to_nfc(part);
    from = end;
  }
  return all;
}

class GgufTokenizerTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Tokenizer>> load(const GgufBytes& bytes) {
    write_file(path_, bytes.file());
    return Tokenizer::load(path_);
  }
  void expect_refused(const GgufBytes& bytes, const std::string& text) {
    const auto tokenizer = load(bytes);
    ASSERT_FALSE(tokenizer.ok()) << text;
    EXPECT_THAT(std::string(tokenizer.status().message()),
                testing::AllOf(HasSubstr(path_.string()), HasSubstr(text)));
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "model.gguf";
};

GgufBytes lists(const json& vocabulary, const std::string& kind) {
  GgufBytes bytes;
  bytes.text("tokenizer.ggml.model", kind);
  bytes.texts("tokenizer.ggml.tokens", vocabulary["tokens"]);
  bytes.numbers("tokenizer.ggml.token_type", 5, vocabulary["types"].get<std::vector<int32_t>>());
  return bytes;
}

GgufBytes byte_level(const std::string& pre) {
  GgufBytes bytes = lists(golden()["byte_level"], "gpt2");
  bytes.texts("tokenizer.ggml.merges", golden()["byte_level"]["merges"]);
  bytes.text("tokenizer.ggml.pre", pre);
  bytes.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
  return bytes;
}

GgufBytes scored() {
  GgufBytes bytes = lists(golden()["scored"], "llama");
  bytes.numbers("tokenizer.ggml.scores", 6, golden()["scored"]["scores"].get<std::vector<float>>());
  bytes.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
  return bytes;
}

TEST_F(GgufTokenizerTest, EveryPreSplitsTextLikeItsTokenizerJson) {
  const json& vocabulary = golden()["byte_level"];
  EXPECT_EQ(vocabulary["ids"].size(), 9u);
  const auto composed = vocabulary["composed"].get<std::set<std::string>>();
  for (const auto& [pre, ids] : vocabulary["ids"].items()) {
    const auto tokenizer = load(byte_level(pre));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::string text = vocabulary["texts"][i];
      const auto expected = ids[i].get<std::vector<int32_t>>();
      EXPECT_EQ(encode(**tokenizer, text), expected) << pre << ": " << text;
      EXPECT_EQ(decode(**tokenizer, expected), composed.contains(pre) ? composed_parts(text) : text)
          << pre;
    }
  }
}

TEST_F(GgufTokenizerTest, ComposesTheCharactersOfEveryQwen) {
  const std::string apart = "e\xCC\x81";
  const auto decoded = [&](const GgufBytes& bytes) {
    const auto tokenizer = load(bytes);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return decode(**tokenizer, encode(**tokenizer, apart));
  };
  EXPECT_EQ(decoded(byte_level("qwen2")), "\xC3\xA9");
  EXPECT_EQ(decoded(byte_level("deepseek-r1-qwen")), "\xC3\xA9");
  // An old file without its own `pre`.
  for (const char* const architecture : {"qwen2", "qwen2moe", "qwen3", "qwen3moe"}) {
    EXPECT_EQ(decoded(byte_level("default").text("general.architecture", architecture)), "\xC3\xA9")
        << architecture;
  }
  EXPECT_EQ(decoded(byte_level("default").text("general.architecture", "llama")), apart);
  EXPECT_EQ(decoded(byte_level("stablelm2")), apart);
}

// As in Gemma's files: no piece has the type of an unknown one, and pieces of spaces are spelt with
// spaces.
TEST_F(GgufTokenizerTest, PiecesOfTheUserMatchSpacesAndAKeyNamesTheUnknownPiece) {
  GgufBytes bytes;
  bytes.text("general.architecture", "gemma3").text("tokenizer.ggml.model", "llama");
  bytes.texts("tokenizer.ggml.tokens", {"<unk>", "a", "\xE2\x96\x81",
                                        "\xE2\x96\x81"
                                        "a",
                                        "  "});
  bytes.numbers<int32_t>("tokenizer.ggml.token_type", 5, {3, 1, 1, 1, 4});
  bytes.numbers<float>("tokenizer.ggml.scores", 6, {0, -1, -2, -3, -1000});
  bytes.flag("tokenizer.ggml.add_space_prefix", false).flag("tokenizer.ggml.add_bos_token", false);
  EXPECT_FALSE(load(bytes).ok());
  bytes.u32("tokenizer.ggml.unknown_token_id", 0);
  const auto tokenizer = load(bytes);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(encode(**tokenizer, "a  a a"), testing::ElementsAre(1, 4, 1, 3));
  EXPECT_EQ(decode(**tokenizer, {1, 4, 1, 3}), "a  a a");
  EXPECT_THAT(encode(**tokenizer, "x"), testing::ElementsAre(0));
}

TEST_F(GgufTokenizerTest, NamesOfOnePatternSplitAlike) {
  const json& vocabulary = golden()["byte_level"];
  const std::pair<const char*, std::vector<const char*>> kAlike[] = {
      {"llama-bpe", {"llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}},
      {"smollm", {"starcoder", "refact", "codeshell", "exaone", "minerva-7b"}},
      {"qwen2", {"deepseek-r1-qwen"}},
      {"stablelm2", {"megrez", "hunyuan", "kormo", "grok-2", "solar-open"}},
      {"gpt-2",
       {"phi-2", "mpt", "jais", "trillion", "exaone4", "gigachat", "mellum", "a.x-4.0",
        "granite-docling"}}};
  for (const auto& [pre, names] : kAlike) {
    for (const char* const name : names) {
      const auto tokenizer = load(byte_level(name));
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      for (size_t i = 0; i < vocabulary["texts"].size(); ++i) {
        const std::string text = vocabulary["texts"][i];
        EXPECT_EQ(encode(**tokenizer, text), vocabulary["ids"][pre][i].get<std::vector<int32_t>>())
            << name << ": " << text;
      }
    }
  }
}

// The pattern is Llama 3's, and BOS is not.
TEST_F(GgufTokenizerTest, AddsNoBosForOtherModelsWithThePatternOfLlama3) {
  for (const char* const name : {"glm4", "chatglm-bpe", "dbrx", "smaug-bpe"}) {
    const auto tokenizer = load(byte_level(name));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_NE(encode(**tokenizer, "a", true, /*add_bos=*/true).front(), 1) << name;
    const auto words = [&](const std::string& text) { return encode(**tokenizer, text).size(); };
    EXPECT_EQ(words("1234"), words("123") + words("4")) << name;
  }
}

TEST_F(GgufTokenizerTest, ScoresMergeLikeSentencepiece) {
  const json& vocabulary = golden()["scored"];
  const auto tokenizer = load(scored());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (size_t i = 0; i < vocabulary["ids"].size(); ++i) {
    const std::string text = vocabulary["texts"][i];
    EXPECT_EQ(encode(**tokenizer, text), vocabulary["ids"][i].get<std::vector<int32_t>>()) << text;
  }
  EXPECT_TRUE((*tokenizer)->strips_leading_space());
  EXPECT_EQ(encode(**tokenizer, "a", true, /*add_bos=*/true).front(), 1);
}

TEST_F(GgufTokenizerTest, AddsASpaceInFrontOnlyIfTheFileSaysSo) {
  const auto with = load(scored());
  const auto without = load(scored().flag("tokenizer.ggml.add_space_prefix", false));
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_EQ(decode(**with, encode(**with, "word")), " word");
  EXPECT_EQ(decode(**without, encode(**without, "word")), "word");
}

TEST_F(GgufTokenizerTest, ControlTokensAreSpecialAndUserDefinedOnesAreText) {
  const auto tokenizer = load(byte_level("gpt-2"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(encode(**tokenizer, "<|im_start|>"), std::vector<int32_t>{1});
  EXPECT_GT(encode(**tokenizer, "<|im_start|>", /*parse_special=*/false).size(), 1u);
  EXPECT_EQ(encode(**tokenizer, "<tool>", /*parse_special=*/false), std::vector<int32_t>{3});
  EXPECT_TRUE((*tokenizer)->is_special(1));
  EXPECT_FALSE((*tokenizer)->is_special(3));
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
}

TEST_F(GgufTokenizerTest, AddsBosIfThePreOrTheFileSaysSo) {
  const auto bos = [&](const GgufBytes& bytes) {
    const auto tokenizer = load(bytes);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return encode(**tokenizer, "a", true, /*add_bos=*/true).front() == 1;
  };
  EXPECT_FALSE(bos(byte_level("smollm")));
  EXPECT_TRUE(bos(byte_level("llama-bpe")));
  EXPECT_TRUE(bos(byte_level("smollm").flag("tokenizer.ggml.add_bos_token", true)));
  EXPECT_FALSE(bos(byte_level("llama-bpe").flag("tokenizer.ggml.add_bos_token", false)));
}

TEST_F(GgufTokenizerTest, RefusesByNameWhatItLacks) {
  expect_refused(GgufBytes(), "tokenizer.ggml.model: is missing");
  expect_refused(GgufBytes().text("tokenizer.ggml.model", "bert"),
                 "\"bert\" is not supported; supported are \"gpt2\" and \"llama\"");
  expect_refused(byte_level("viking"), "\"viking\" is not supported; supported are llama-bpe");
}

TEST_F(GgufTokenizerTest, RefusesListsThatDoNotFit) {
  const auto start = [](const std::string& kind) {
    return GgufBytes().text("tokenizer.ggml.model", kind);
  };
  const std::string tokens = "tokenizer.ggml.tokens";
  const std::string types = "tokenizer.ggml.token_type";
  expect_refused(start("gpt2"), tokens);
  expect_refused(start("gpt2").u32(tokens, 1), tokens);
  expect_refused(start("gpt2").numbers<int32_t>(tokens, 5, {1}), "another type");
  expect_refused(start("gpt2").texts(tokens, {"a", "a"}), "is there twice");
  expect_refused(start("gpt2").texts(tokens, {"a"}).numbers<int32_t>(types, 5, {1, 1}),
                 "2 elements for 1 tokens");
  expect_refused(start("gpt2").texts(tokens, {"a"}).numbers<int32_t>(types, 5, {9}), "type 9");
  expect_refused(start("gpt2").texts(tokens, {"a"}).texts("tokenizer.ggml.merges", {"a b"}),
                 "is not in the vocabulary");
  for (const char* merge : {"ab", "a b c", ""}) {
    expect_refused(start("gpt2").texts(tokens, {"a"}).texts("tokenizer.ggml.merges", {merge}),
                   "the tokenizer: merge 0 \"" + std::string(merge) + "\" is no pair");
  }
  expect_refused(start("gpt2").texts(tokens, {"a"}).u32("tokenizer.ggml.merges", 1), "is no list");
  expect_refused(byte_level("gpt-2").text("tokenizer.ggml.add_bos_token", "yes"), "add_bos_token");
  expect_refused(start("llama").texts(tokens, {"a"}), "tokenizer.ggml.scores");
  expect_refused(start("llama")
                     .texts(tokens, {"a"})
                     .numbers("tokenizer.ggml.scores", 6, std::vector<float>{0}),
                 "one unknown piece");
  expect_refused(start("gpt2").texts(tokens, {"a"}).u32("tokenizer.ggml.eos_token_id", 1),
                 "eos_token_id");
}

TEST_F(GgufTokenizerTest, FindsTheChatTemplate) {
  write_file(path_, byte_level("gpt-2").file());
  EXPECT_EQ(*find_chat_template(path_), std::nullopt);
  write_file(path_, byte_level("gpt-2").text("tokenizer.chat_template", "{{ 1 }}").file());
  EXPECT_EQ(*find_chat_template(path_), "{{ 1 }}");
  EXPECT_EQ(*find_chat_template(directory_.path()), "{{ 1 }}");
  write_file(path_, byte_level("gpt-2").u32("tokenizer.chat_template", 1).file());
  EXPECT_FALSE(find_chat_template(path_).ok());
}

}  // namespace
}  // namespace tessera
