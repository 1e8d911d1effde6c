#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "nlohmann/json.hpp"
#include "tests/shared_data.h"
#include "tests/text/golden.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Tokenizer>> load(const std::string& name, const std::string& file,
                                                const std::string& config = {}) {
  const auto folder = scratch_folder(name);
  write_file(folder / "tokenizer.json", file);
  if (!config.empty()) write_file(folder / "tokenizer_config.json", config);
  return Tokenizer::load(folder);
}

// A vocabulary of "a b ab <s> </s> Ġ Ġab" and its merges.
json small_byte_level() {
  return json::parse(R"json({
    "added_tokens": [{"id": 3, "content": "<s>", "special": true},
                     {"id": 4, "content": "</s>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE",
      "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4, "Ġ": 5, "Ġab": 6},
      "merges": ["a b", "Ġ ab"]}})json");
}

struct Ranked {
  std::string left;
  std::string right;
  float score;
};

// Returns: the pairs that merge into a piece, best score first, as converters derive merges.
json merges_of(const SentencePieceModel& model, const json& vocabulary) {
  std::vector<Ranked> ranked;
  for (const auto& piece : model.pieces) {
    if (piece.type != SentencePieceModel::Type::normal) continue;
    std::vector<Ranked> local;
    for (size_t i = 1; i < piece.text.size(); ++i) {
      const std::string left = piece.text.substr(0, i);
      const std::string right = piece.text.substr(i);
      if (vocabulary.contains(left) && vocabulary.contains(right)) {
        local.push_back({left, right, piece.score});
      }
    }
    ranked.insert(ranked.end(), local.begin(), local.end());
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Ranked& a, const Ranked& b) { return a.score > b.score; });
  json merges = json::array();
  for (size_t i = 0; i < ranked.size(); ++i) {
    if (i % 2 == 0) {
      merges.push_back(ranked[i].left + " " + ranked[i].right);
    } else {
      merges.push_back({ranked[i].left, ranked[i].right});
    }
  }
  return merges;
}

json llama_style(const SentencePieceModel& model) {
  json vocabulary = json::object();
  for (size_t i = 0; i < model.pieces.size(); ++i) vocabulary[model.pieces[i].text] = i;
  json file = json::parse(R"json({
    "added_tokens": [{"id": 0, "content": "<unk>", "special": true},
                     {"id": 1, "content": "<s>", "special": true},
                     {"id": 2, "content": "</s>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true,
              "byte_fallback": true}})json");
  file["model"]["merges"] = merges_of(model, vocabulary);
  file["model"]["vocab"] = std::move(vocabulary);
  return file;
}

TEST(ByteLevelTokenizer, MatchesEveryGoldenCaseOfGpt2) {
  TESSERA_SHARED_DATA_OR_SKIP(file, "tokenizers/gpt2_tokenizer.json");
  const auto tokenizer = load("gpt2", read_file(file));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 50257);
  EXPECT_FALSE((*tokenizer)->strips_leading_space());
  const auto cases = read_golden(*shared_data("tokenizers/golden-gpt-2.inp"));
  ASSERT_EQ(cases.size(), 46U);
  for (const GoldenCase& golden : cases) {
    EXPECT_EQ(encode_plain(**tokenizer, golden.text), golden.ids) << golden.text;
    std::string text;
    for (const int32_t id : golden.ids) text += (*tokenizer)->token_bytes(id, false);
    EXPECT_EQ(text, golden.text);
  }
}

TEST(ByteLevelTokenizer, EndsATextAsItsSettingsSayButNotAPrompt) {
  json file = small_byte_level();
  file["post_processor"]["single"].push_back({{"SpecialToken", {{"id", "</s>"}}}});
  file["post_processor"]["special_tokens"]["</s>"] = {{"id", "</s>"}, {"ids", {4}}};
  const auto end_of = [](const char* name, const json& of, const std::string& config = {}) {
    const auto tokenizer = load(name, of.dump(), config);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->encode(std::vector<TextSegment>{{"ab", false}}, true),
              (std::vector<int32_t>{3, 2}));
    const auto end = (*tokenizer)->text_end();
    return std::vector<int32_t>(end.begin(), end.end());
  };
  EXPECT_EQ(end_of("ends", file), std::vector<int32_t>{4});
  EXPECT_EQ(end_of("begins", small_byte_level()), std::vector<int32_t>{});
  EXPECT_EQ(end_of("not_by_config", file, R"({"add_eos_token": false})"), std::vector<int32_t>{});
  EXPECT_EQ(
      end_of("by_config", small_byte_level(), R"({"add_eos_token": true, "eos_token": "</s>"})"),
      std::vector<int32_t>{4});
  file["post_processor"]["special_tokens"]["</s>"]["ids"] = {40};
  EXPECT_FALSE(load("ends_outside", file.dump()).ok());
}

TEST(SentencePieceStyleTokenizer, GivesTheIdsOfTheModelItWasMadeFrom) {
  TESSERA_SHARED_DATA_OR_SKIP(path, "tokenizers/llama2_tokenizer.model");
  const auto model = SentencePieceModel::parse(read_file(path));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto tokenizer = load("llama-json", llama_style(*model).dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto cases = read_golden(*shared_data("tokenizers/golden-llama-spm.inp"));
  ASSERT_EQ(cases.size(), 46U);
  for (const GoldenCase& golden : cases) {
    EXPECT_EQ(encode_plain(**tokenizer, golden.text), golden.ids) << golden.text;
  }
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_TRUE((*tokenizer)->strips_leading_space());
  EXPECT_EQ((*tokenizer)->token_bytes(3 + 0x0A, false), "\n");
  const TextSegment text{"Hello world", false};
  EXPECT_THAT((*tokenizer)->encode({&text, 1}, true), ElementsAre(1, 15043, 3186));
  const TextSegment spelled{"</s>", false};
  const auto ids = (*tokenizer)->encode({&spelled, 1}, false);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 0);
}

// Expected ids are those of Hugging Face tokenizers on the same file.
TEST(SentencePieceStyleTokenizer, PutsMetaspacePrefixesWhereTheirSchemeSays) {
  json file = small_byte_level();
  file["model"]["vocab"] = {{"▁", 0}, {"a", 1}, {"b", 2}, {"ab", 3}, {"▁ab", 4}, {"<s>", 5}};
  file["model"]["merges"] = {"a b", "▁ ab"};
  file["added_tokens"] = {{{"id", 5}, {"content", "<s>"}, {"special", true}}};
  file["post_processor"] = nullptr;
  file["decoder"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}};
  const auto ids = [&](const char* scheme, bool split, const std::string& text) {
    file["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
    const auto tokenizer = load("metaspace", file.dump());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    const TextSegment segment{text, true};
    return tokenizer.ok() ? (*tokenizer)->encode({&segment, 1}, false) : std::vector<int32_t>();
  };
  EXPECT_THAT(ids("always", false, "ab<s>ab ab"), ElementsAre(4, 5, 4, 4));
  EXPECT_THAT(ids("first", false, "ab<s>ab ab"), ElementsAre(4, 5, 3, 4));
  EXPECT_THAT(ids("never", true, "ab ab"), ElementsAre(3, 4));
  EXPECT_THAT(ids("always", true, " ab"), ElementsAre(4));
  EXPECT_THAT(ids("always", true, "  ab"), ElementsAre(0, 4));
}

TEST(ByteLevelTokenizer, AddsBosByTheTemplateUnlessTheConfigurationSaysOtherwise) {
  const std::string file = small_byte_level().dump();
  const TextSegment text{"ab", false};
  const auto by_template = load("template", file);
  ASSERT_TRUE(by_template.ok()) << by_template.status();
  EXPECT_THAT((*by_template)->encode({&text, 1}, true), ElementsAre(3, 2));
  EXPECT_EQ((*by_template)->bos_id(), 3);
  EXPECT_EQ((*by_template)->eos_id(), std::nullopt);
  const auto without =
      load("without", file, R"({"add_bos_token": false, "eos_token": {"content": "</s>"}})");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_THAT((*without)->encode({&text, 1}, true), ElementsAre(2));
  EXPECT_EQ((*without)->eos_id(), 4);
}

TEST(ByteLevelTokenizer, TakesAWholeWordWhereMergesAreIgnored) {
  json file = small_byte_level();
  file["model"]["merges"] = json::array();
  EXPECT_THAT(encode_plain(**load("merges", file.dump()), "ab"), ElementsAre(0, 1));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(encode_plain(**load("ignored", file.dump()), "ab ab"), ElementsAre(2, 6));
}

TEST(ByteLevelTokenizer, NeverMakesASpecialTokenFromText) {
  json file = small_byte_level();
  file["model"]["ignore_merges"] = true;
  file["added_tokens"].push_back({{"id", 2}, {"content", "ab"}, {"special", true}});
  const auto tokenizer = load("merged-special", file.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(encode_plain(**tokenizer, "ab"), ElementsAre(0, 1));
  const TextSegment allowed{"ab", true};
  EXPECT_THAT((*tokenizer)->encode({&allowed, 1}, false), ElementsAre(2));
}

TEST(AddedTokens, TakeWhiteSpaceAlongAndStandAloneAsTheirFlagsSay) {
  json file = small_byte_level();
  file["added_tokens"].push_back(
      {{"id", 7}, {"content", "<m>"}, {"lstrip", true}, {"rstrip", true}, {"special", true}});
  file["added_tokens"].push_back({{"id", 8}, {"content", "aa"}, {"single_word", true}});
  const auto tokenizer = load("strip", file.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const TextSegment segment{"ab \n<m>\t ab aa aab", true};
  EXPECT_THAT((*tokenizer)->encode({&segment, 1}, false), ElementsAre(2, 7, 2, 5, 8, 5, 0, 2));
  EXPECT_EQ((*tokenizer)->vocab_size(), 9);
}

TEST(AddedTokens, AreTheLongestThatFit) {
  json file = small_byte_level();
  file["added_tokens"].push_back({{"id", 7}, {"content", "<s><s>"}, {"special", true}});
  const auto tokenizer = load("longest", file.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const TextSegment segment{"<s><s><s>", true};
  EXPECT_THAT((*tokenizer)->encode({&segment, 1}, false), ElementsAre(7, 3));
  const std::vector<TextSegment> border = {{"<s>", true}, {"<s>", false}};
  EXPECT_EQ((*tokenizer)->encode(border, false).front(), 3);
}

TEST(ByteLevelTokenizer, EncodesAMegabyteOfOneLetterInTime) {
  TESSERA_SHARED_DATA_OR_SKIP(file, "tokenizers/gpt2_tokenizer.json");
  const auto tokenizer = load("gpt2-long", read_file(file));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const char letter : {'a', ' ', '!'}) {
    size_t size = 0;
    for (const int32_t id : encode_plain(**tokenizer, std::string(1 << 20, letter))) {
      size += (*tokenizer)->token_bytes(id, false).size();
    }
    EXPECT_EQ(size, size_t{1} << 20U);
  }
}

TEST(ByteLevelTokenizer, TakesInvalidUtf8ForReplacementCharacters) {
  TESSERA_SHARED_DATA_OR_SKIP(file, "tokenizers/gpt2_tokenizer.json");
  const auto tokenizer = load("gpt2-invalid", read_file(file));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(encode_plain(**tokenizer, "a\xFFz"), encode_plain(**tokenizer, "a\xEF\xBF\xBDz"));
}

struct Change {
  std::string path;
  json value;
  std::string message;
};

TEST(TokenizerJson, RefusesByNameWhatItDoesNotRun) {
  const std::vector<Change> changes = {
      {"/model/type", "WordPiece", "\"WordPiece\""},
      {"/model/type", "Unigram", "\"Unigram\""},
      {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/model/dropout", 0.1, "dropout"},
      {"/normalizer", {{"type", "NFKC"}}, "normalizer \"NFKC\""},
      {"/normalizer", {{"type", "Prepend"}, {"prepend", "x"}}, "normalizer \"Prepend\""},
      {"/pre_tokenizer", {{"type", "BertPreTokenizer"}}, "\"BertPreTokenizer\""},
      {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}}, "\"Metaspace\""},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Removed"}},
       "\"Split\""},
      {"/post_processor", {{"type", "BertProcessing"}}, "\"BertProcessing\""},
      {"/decoder", {{"type", "WordPiece"}}, "decoder \"WordPiece\""},
  };
  for (const Change& change : changes) {
    json file = small_byte_level();
    file[json::json_pointer(change.path)] = change.value;
    const auto tokenizer = load("unsupported", file.dump());
    ASSERT_FALSE(tokenizer.ok()) << change.path << change.value;
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kUnimplemented) << change.message;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(change.message));
  }
}

TEST(TokenizerJson, RefusesByNameWhatIsBroken) {
  const std::vector<Change> changes = {
      {"/model/vocab", json::array(), "without \"vocab\""},
      {"/model/vocab/b", 0, "the same id 0"},
      {"/model/vocab/b", -1, "not between 0 and"},
      {"/model/vocab/b", 1 << 30, "not between 0 and"},
      {"/model/vocab/b", 18446744073709551615U, "not between 0 and"},
      {"/model/vocab/b", 1.5, "not a whole number"},
      {"/model/merges", "a b", "list \"merges\""},
      {"/model/merges/0", "ab", "merge 0 \"ab\" is no pair"},
      {"/model/merges/0", "a b c", "is no pair"},
      {"/model/merges/0", {"a", 1}, "merge 0 is no pair"},
      {"/model/merges/0", "a x", "needs \"x\""},
      {"/model/merges/0", "b a", "needs \"ba\""},
      {"/model/unk_token", "<none>", "unk_token \"<none>\""},
      {"/added_tokens", {{"id", 1}}, "not a list"},
      {"/added_tokens/0/id", 1, "the vocabulary says 3"},
      {"/added_tokens/0/content", "new", "is \"<s>\" in the vocabulary"},
      {"/added_tokens/0/content", "", "is \"<s>\" in the vocabulary"},
      {"/added_tokens/1", {{"id", 3}, {"content", "<s>"}}, "there twice"},
      {"/added_tokens/0/special", 1, "\"special\""},
      {"/pre_tokenizer", {{"type", "Sequence"}}, "\"pretokenizers\""},
      {"/pre_tokenizer", 7, "not an object"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}},
       "regular expression, at byte 2"},
      {"/post_processor/single", nullptr, "\"single\""},
      {"/post_processor/special_tokens", nullptr, "no ids for \"<s>\""},
      {"/post_processor/special_tokens/<s>/ids/0", 77, "there is no token 77"},
      {"/post_processor/single/1", {{"Sequence", {{"id", "B"}}}}, "not about one text"},
  };
  for (const Change& change : changes) {
    json file = small_byte_level();
    file[json::json_pointer(change.path)] = change.value;
    const auto tokenizer = load("broken", file.dump());
    ASSERT_FALSE(tokenizer.ok()) << change.path << change.value;
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << change.message;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(change.message));
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("tokenizer.json"));
  }
}

TEST(Tokenizer, PrefersTokenizerJson) {
  const auto folder = scratch_folder("both");
  write_file(folder / "tokenizer.json", small_byte_level().dump());
  write_file(folder / "tokenizer.model", "broken");
  const auto tokenizer = Tokenizer::load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 7);
}

}  // namespace
}  // namespace tessera
