#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/shared_data.h"
#include "tests/text/golden.h"
#include "tests/text/sentencepiece_writer.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Type = SentencePieceModel::Type;

// <unk> <s> </s> <|end|>, then letters and two merges.
SentencePieceWriter small_model() {
  SentencePieceWriter writer;
  writer.piece("<unk>", 0, Type::unknown).piece("<s>", 0, Type::control);
  writer.piece("</s>", 0, Type::control).piece("<|end|>", 0, Type::control);
  writer.piece("\xE2\x96\x81", -9).piece("a", -9).piece("b", -9).piece("ab", -1);
  writer.piece(
      "\xE2\x96\x81"
      "ab",
      -2);
  return writer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> load(const std::string& name, const std::string& model,
                                                const std::string& config = {}) {
  const auto folder = scratch_folder(name);
  write_file(folder / "tokenizer.model", model);
  if (!config.empty()) write_file(folder / "tokenizer_config.json", config);
  return Tokenizer::load(folder);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> load_shared(const std::filesystem::path& model,
                                                       const std::string& config = {}) {
  return load(model.stem(), read_file(model), config);
}

TEST(SentencePieceTokenizer, MatchesEveryGoldenCaseOfLlama2) {
  TESSERA_SHARED_DATA_OR_SKIP(model, "tokenizers/llama2_tokenizer.model");
  for (const char* config : {"", R"({"legacy": false})"}) {
    const auto tokenizer = load_shared(model, config);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->vocab_size(), 32000);
    const auto cases = read_golden(*shared_data("tokenizers/golden-llama-spm.inp"));
    ASSERT_EQ(cases.size(), 46U);
    for (const GoldenCase& golden : cases) {
      EXPECT_EQ(encode_plain(**tokenizer, golden.text), golden.ids) << golden.text;
    }
  }
}

TEST(SentencePieceTokenizer, RoundTripsThroughMistralV1) {
  TESSERA_SHARED_DATA_OR_SKIP(model, "tokenizers/mistral_v1_tokenizer.model");
  const auto tokenizer = load_shared(model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const GoldenCase& golden : read_golden(*shared_data("tokenizers/golden-llama-spm.inp"))) {
    std::string text;
    for (const int32_t id : encode_plain(**tokenizer, golden.text)) {
      text += (*tokenizer)->token_bytes(id, false);
    }
    EXPECT_EQ(text, golden.text.empty() ? "" : " " + golden.text);
  }
}

TEST(SentencePieceTokenizer, AddsBosWhereTheCheckpointDoes) {
  const auto tokenizer = load("bos", small_model().trainer(false).normalizer(true).bytes());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const TextSegment segment{"ab", false};
  EXPECT_THAT((*tokenizer)->encode({&segment, 1}, true), ElementsAre(1, 8));
  EXPECT_THAT((*tokenizer)->encode({&segment, 1}, false), ElementsAre(8));
  const auto without = load("nobos", small_model().trainer(false).normalizer(true).bytes(),
                            R"({"add_bos_token": false})");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_THAT((*without)->encode({&segment, 1}, true), ElementsAre(8));
  EXPECT_EQ((*without)->bos_id(), 1);
  EXPECT_EQ((*without)->eos_id(), 2);
  EXPECT_EQ((*without)->special_id("<|end|>"), 3);
  EXPECT_EQ((*without)->special_id("ab"), std::nullopt);
}

TEST(SentencePieceTokenizer, PutsTheDummyPrefixWhereTheLegacyFlagSays) {
  const std::string model = small_model().trainer(false).normalizer(true).bytes();
  const TextSegment segment{"ab<|end|>ab", true};
  const auto always = load("legacy", model, R"({"legacy": true})");
  const auto first = load("modern", model, R"({"legacy": false})");
  const auto never = load("never", model, R"({"add_prefix_space": false})");
  ASSERT_TRUE(always.ok() && first.ok() && never.ok());
  EXPECT_THAT((*always)->encode({&segment, 1}, false), ElementsAre(8, 3, 8));
  EXPECT_THAT((*first)->encode({&segment, 1}, false), ElementsAre(8, 3, 7));
  EXPECT_THAT((*never)->encode({&segment, 1}, false), ElementsAre(7, 3, 7));
  EXPECT_TRUE((*first)->strips_leading_space());
  EXPECT_FALSE((*never)->strips_leading_space());
  const TextSegment begins_special{"<|end|>ab", true};
  EXPECT_THAT((*first)->encode({&begins_special, 1}, false), ElementsAre(3, 7));
}

TEST(SentencePieceTokenizer, RecognisesSpecialTokensOnlyWhereTheyAreAllowed) {
  const auto tokenizer =
      load("rights", small_model().all_bytes().trainer(true).normalizer(false).bytes());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<TextSegment> segments = {{"<|end|>", true}, {"</s><|e", false}, {"nd|>", true}};
  const std::vector<int32_t> ids = (*tokenizer)->encode(segments, false);
  EXPECT_EQ(ids.front(), 3);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 3), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 0);
  const std::vector<TextSegment> neighbours = {{"<|e", true}, {"nd|>", true}};
  EXPECT_THAT((*tokenizer)->encode(neighbours, false), ElementsAre(3));
}

TEST(SentencePieceTokenizer, MergesAcrossSegmentBorders) {
  const auto tokenizer = load("borders", small_model().trainer(false).normalizer(true).bytes());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<TextSegment> segments = {{"a", false}, {"b", true}};
  EXPECT_THAT((*tokenizer)->encode(segments, false), ElementsAre(8));
}

TEST(SentencePieceTokenizer, NeverMergesTextIntoAPieceThatTheConfigurationCallsSpecial) {
  const std::string config =
      R"({"added_tokens_decoder": {"7": {"content": "ab", "special": true},
          "9": {"content": "<new>", "special": false}}, "legacy": false})";
  const auto tokenizer =
      load("special-piece", small_model().trainer(false).normalizer(true).bytes(), config);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(encode_plain(**tokenizer, "ab"), ElementsAre(4, 5, 6));
  EXPECT_THAT(encode_plain(**tokenizer, "a<new>b"), ElementsAre(4, 5, 9, 6));
  EXPECT_EQ((*tokenizer)->vocab_size(), 10);
  EXPECT_FALSE((*tokenizer)->is_special(9));
  EXPECT_TRUE((*tokenizer)->is_special(7));
  EXPECT_EQ((*tokenizer)->token_bytes(7, false), "");
  EXPECT_EQ((*tokenizer)->token_bytes(7, true), "ab");
}

TEST(SentencePieceTokenizer, KeepsUserDefinedPiecesWhole) {
  auto writer = small_model();
  writer.piece("ba", 0, Type::user_defined);
  const auto tokenizer = load("user", writer.trainer(false).normalizer(false).bytes());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(encode_plain(**tokenizer, "abab"), ElementsAre(5, 9, 6));
}

TEST(SentencePieceTokenizer, TakesUnusedPiecesApart) {
  auto writer = small_model();
  writer.piece("abab", -0.5, Type::unused);
  const auto tokenizer = load("unused", writer.trainer(false).normalizer(false).bytes());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(encode_plain(**tokenizer, "abab"), ElementsAre(7, 7));
}

TEST(SentencePieceTokenizer, SpellsUnknownCharactersAsBytesOrJoinsThemToOneUnknown) {
  const auto bytes =
      load("bytes", small_model().all_bytes().trainer(true).normalizer(false).bytes());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_THAT(encode_plain(**bytes, "a\xC3\xA9"), ElementsAre(5, 9 + 0xC3, 9 + 0xA9));
  EXPECT_EQ((*bytes)->token_bytes(9 + 0xC3, false), "\xC3");
  const auto unknown = load("unknown", small_model().trainer(false).normalizer(false).bytes());
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_THAT(encode_plain(**unknown, "axyb"), ElementsAre(5, 0, 6));
}

TEST(SentencePieceTokenizer, TakesInvalidUtf8ForReplacementCharacters) {
  const auto tokenizer =
      load("invalid", small_model().all_bytes().trainer(true).normalizer(false).bytes());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(encode_plain(**tokenizer,
                         "a\xFF"
                         "b\xE2\x96"),
            encode_plain(**tokenizer,
                         "a\xEF\xBF\xBD"
                         "b\xEF\xBF\xBD"));
}

TEST(SentencePieceTokenizer, RemovesExtraSpacesIfTheModelSaysSo) {
  const auto tokenizer =
      load("collapse", small_model().trainer(false).normalizer(true, true).bytes());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(encode_plain(**tokenizer, "  ab   ab  "), ElementsAre(8, 8));
  EXPECT_THAT(encode_plain(**tokenizer, "   "), ElementsAre());
}

TEST(SentencePieceTokenizer, EncodesAMegabyteOfOneLetterInTime) {
  TESSERA_SHARED_DATA_OR_SKIP(model, "tokenizers/llama2_tokenizer.model");
  const auto tokenizer = load_shared(model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::string text;
  for (const int32_t id : encode_plain(**tokenizer, std::string(1 << 20, 'a'))) {
    text += (*tokenizer)->token_bytes(id, false);
  }
  EXPECT_EQ(text, " " + std::string(1 << 20, 'a'));
}

struct BrokenModel {
  std::string bytes;
  std::string message;
};

TEST(SentencePieceModel, RefusesWhatIsBrokenByName) {
  const std::string good = small_model().trainer(false).normalizer(true).bytes();
  const std::vector<BrokenModel> cases = {
      {"", "no pieces"},
      {"plain text, no protobuf", "malformed"},
      {good.substr(0, good.size() - 3), "malformed"},
      {small_model().bytes(), "no trainer_spec"},
      {small_model().piece("ab").trainer(false).bytes(), "\"ab\" is there twice"},
      {small_model().piece("").trainer(false).bytes(), "piece 9 is empty"},
      {small_model().piece("\xFF").trainer(false).bytes(), "piece 9 is not UTF-8"},
      {small_model().piece("<x>", 0, Type::unknown).trainer(false).bytes(), "one unknown piece"},
      {small_model().piece("<0x4>", 0, Type::byte).trainer(false).bytes(), "\"<0x4>\""},
      {small_model().piece("c", 0, static_cast<Type>(9)).trainer(false).bytes(), "type 9"},
      {small_model().piece("c", std::nanf("")).trainer(false).bytes(), "not a number"},
      {small_model().trainer(true).bytes(), "256 byte pieces"},
      {small_model().trainer(false, 1).bytes(), "unigram"},
      {small_model().trainer(false, 77).bytes(), "77"},
      {small_model().trainer(false).normalizer(true, false, "rules").bytes(), "nmt_nfkc"},
  };
  for (const BrokenModel& broken : cases) {
    const auto model = SentencePieceModel::parse(broken.bytes);
    ASSERT_FALSE(model.ok()) << broken.message;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(broken.message));
  }
}

TEST(SentencePieceTokenizer, RefusesAConfigurationThatContradictsTheModel) {
  const std::string model = small_model().trainer(false).normalizer(true).bytes();
  const std::pair<const char*, const char*> cases[] = {
      {R"({"added_tokens_decoder": {"5": {"content": "x"}}})", "added token 5 \"x\""},
      {R"({"added_tokens_decoder": {"9": {"content": "x"}, "10": {"content": "x"}}})", "twice"},
      {R"({"added_tokens_decoder": {"-1": {"content": "x"}}})", "not between 0 and"},
      {R"({"added_tokens_decoder": {"99999999": {"content": "x"}}})", "not between 0 and"},
      {R"({"added_tokens_decoder": {"x": {"content": "x"}}})", "where an id is due"},
      {R"({"added_tokens_decoder": {"9": {}}})", "no \"content\""},
      {R"({"added_tokens_decoder": []})", "not an object"},
      {R"({"bos_token": "<none>"})", "\"<none>\""},
      {R"({"bos_token": 3})", "bos_token"},
      {R"({"legacy": "yes"})", "legacy"},
      {R"([1])", "not a JSON object"},
      {R"({"a)", "not a JSON object"},
  };
  for (const auto& [config, message] : cases) {
    const auto tokenizer = load("contradiction", model, config);
    ASSERT_FALSE(tokenizer.ok()) << config;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(message));
  }
}

TEST(Tokenizer, NamesTheDirectoryWithoutOne) {
  const auto tokenizer = Tokenizer::load(scratch_folder("empty"));
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("neither tokenizer.json nor"));
}

TEST(Tokenizer, KnowsNoTokenBeyondItsVocabulary) {
  const auto tokenizer = load("beyond", small_model().trainer(false).normalizer(true).bytes());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const int32_t id : {-1, 9, 1 << 30}) {
    EXPECT_EQ((*tokenizer)->token_bytes(id, true), "");
    EXPECT_FALSE((*tokenizer)->is_special(id));
  }
}

}  // namespace
}  // namespace tessera
