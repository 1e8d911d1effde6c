// Compares tokenizers with tiktoken, mistral-common and PyPI's tokenizers, in both directions.
// tokenizers_golden.py computed the ids. With TESSERA_TOKENIZER_CASES=FILE this test reads its live
// output, with whole vocabularies and 5,000 texts each (live_tokenizers.sh).

#include <gtest/gtest.h>

#include <cstdlib>

#include "nlohmann/json.hpp"
#include "tests/text/golden.h"
#include "text/detokenizer.h"

namespace tessera {
namespace {

using nlohmann::json;

const json& golden() {
  static const json kGolden = [] {
    const char* live = std::getenv("TESSERA_TOKENIZER_CASES");
    const std::filesystem::path path =
        live != nullptr ? live : TESSERA_SOURCE_DIR "/tests/golden/tokenizers.json";
    return json::parse(read_file(path));
  }();
  return kGolden;
}

std::unique_ptr<Tokenizer> load(const json& kind, const std::string& name) {
  const std::filesystem::path folder = scratch_folder(name);
  const auto file = folder / kind.at("file").get<std::string>();
  write_file(file, tokenizer_content(kind));
  auto tokenizer = Tokenizer::load(folder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

std::string decoded(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                    bool keep_special) {
  Detokenizer detokenizer(tokenizer, {.keep_special = keep_special});
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

class TokenizerOracle : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerOracle, GivesTheSameIdsAndTheSameTexts) {
  const json& kind = golden().at(GetParam());
  const auto tokenizer = load(kind, GetParam());
  ASSERT_NE(tokenizer, nullptr);
  ASSERT_GT(kind.at("cases").size(), 100u);
  int wrong = 0;
  for (const json& one : kind.at("cases")) {
    const auto text = one.at("text").get<std::string>();
    const auto ids = one.at("ids").get<std::vector<int32_t>>();
    const TextSegment segment{text, one.at("special").get<bool>()};
    const std::vector<int32_t> found = tokenizer->encode({&segment, 1}, false);
    EXPECT_EQ(found, ids) << json(text).dump();
    const std::string back = decoded(*tokenizer, ids, one.at("kept").get<bool>());
    EXPECT_EQ(back, one.at("decoded").get<std::string>());
    wrong += found == ids && back == one.at("decoded") ? 0 : 1;
    ASSERT_LT(wrong, 5) << "and so on";
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerOracle, testing::Values("tekken", "llama3", "qwen", "v3"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(TokenizerFiles, AreRefusedWithTheLineThatIsWrong) {
  const auto refusal = [](const char* file, const std::string& content) {
    const std::filesystem::path folder = scratch_folder("wrong");
    write_file(folder / file, content);
    return std::string(Tokenizer::load(folder).status().message());
  };
  EXPECT_NE(refusal("tokenizer.model", "IQ== 0\nIg== 2\n").find("line 2"), std::string::npos);
  EXPECT_NE(refusal("tokenizer.model", "IQ== 0\nIQ== 1\n").find("twice"), std::string::npos);
  EXPECT_NE(refusal("tokenizer.model", "IQ== 0\n").find("no token for the byte 0"),
            std::string::npos);
  EXPECT_NE(refusal("tekken.json", "{}").find("pattern"), std::string::npos);
  EXPECT_NE(refusal("tekken.json", R"({"config": {"pattern": "a", "default_vocab_size": 22,
      "default_num_special_tokens": 20}, "vocab": [{"rank": 1, "token_bytes": "IQ=="}]})")
                .find("no list of 2 tokens"),
            std::string::npos);
}

TEST(TokenizerFiles, AreRefusedInSeveralVersions) {
  const std::filesystem::path folder = scratch_folder("versions");
  write_file(folder / "tokenizer.model.v2", "x");
  write_file(folder / "tokenizer.model.v3", "x");
  EXPECT_NE(std::string(Tokenizer::load(folder).status().message()).find("has both"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
