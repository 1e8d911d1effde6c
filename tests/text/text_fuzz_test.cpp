// Seeded mutations of valid files. Loading any of them gives a Status or a tokenizer, which must
// then encode and decode. Most useful under the sanitizers.
#include <gtest/gtest.h>

#include <random>

#include "tests/text/sentencepiece_writer.h"
#include "text/chat_template.h"
#include "text/json_file.h"
#include "text/piece_tokenizer.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_json.h"

namespace tessera {
namespace {

constexpr uint32_t kCases = 20000;

// Applies one to four edits: changes, removes or duplicates bytes, or writes a problematic word.
std::string mutated(std::string bytes, std::mt19937& random,
                    const std::vector<std::string>& words) {
  const auto below = [&random](size_t limit) { return static_cast<size_t>(random()) % limit; };
  for (size_t edits = 1 + below(4); edits > 0 && !bytes.empty(); --edits) {
    const size_t at = below(bytes.size());
    const size_t size = std::min(bytes.size() - at, 1 + below(16));
    switch (below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(at, size);
        break;
      case 2:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(40)));
        break;
      case 3:
        bytes.insert(at, words[below(words.size())]);
        break;
      default:
        bytes.replace(at, size, words[below(words.size())]);
        break;
    }
  }
  return bytes;
}

void use(const Tokenizer& tokenizer) {
  const std::vector<TextSegment> segments = {
      {"<s> ab  ba\xE2\x96\x81\xFFx äb\n", true}, {"</s>123 'll abab", false}, {"<s>", true}};
  for (const int32_t id : tokenizer.encode(segments, true)) {
    ASSERT_GE(id, 0);
    ASSERT_LT(id, tokenizer.vocab_size());
  }
  for (int32_t id = -1; id <= std::min(tokenizer.vocab_size(), 300); ++id) {
    (void)tokenizer.token_bytes(id, id % 2 == 0);
    (void)tokenizer.is_special(id);
  }
}

std::string small_model() {
  using Type = SentencePieceModel::Type;
  SentencePieceWriter writer;
  writer.piece("<unk>", 0, Type::unknown).piece("<s>", 0, Type::control);
  writer.piece("</s>", 0, Type::control).piece("\xE2\x96\x81", -9).piece("a", -9).piece("b", -9);
  writer.piece("ab", -1)
      .piece(
          "\xE2\x96\x81"
          "ab",
          -2)
      .piece("abab", -3, Type::unused);
  writer.piece("ba", 0, Type::user_defined);
  return writer.trainer(false).normalizer(true).bytes();
}

TEST(SentencePieceFuzz, GivesATokenizerOrAStatus) {
  const std::vector<std::string> words = {std::string("\xFF\xFF\xFF\xFF\x7F", 5),
                                          std::string("\0", 1),
                                          "\x0A",
                                          "\x12",
                                          "\x1A",
                                          "\x18\x06",
                                          "ab",
                                          "<0x41>",
                                          std::string("\x80\x80", 2)};
  const std::string model = small_model();
  int loaded = 0;
  for (uint32_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto parsed = SentencePieceModel::parse(mutated(model, random, words));
    if (!parsed.ok()) continue;
    TokenizerConfig config;
    config.legacy = seed % 2 == 0;
    const auto tokenizer = make_sentencepiece_tokenizer(*parsed, config);
    if (!tokenizer.ok()) continue;
    ++loaded;
    use(**tokenizer);
  }
  EXPECT_GT(loaded, 100);
}

constexpr const char* kByteLevelFile = R"json({
  "added_tokens": [{"id": 3, "content": "<s>", "special": true, "lstrip": true},
                   {"id": 4, "content": "</s>", "special": true, "single_word": true}],
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+|\\s+(?!\\S)|\\s+"},
     "behavior": "Isolated", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [3]}}},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "ignore_merges": true, "unk_token": "</s>",
    "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4, "Ġ": 5, "Ġab": 6},
    "merges": ["a b", ["Ġ", "ab"]]}})json";

constexpr const char* kMetaspaceFile = R"json({
  "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<s>",
    "vocab": {"<s>": 0, "▁": 1, "a": 2, "b": 3, "ab": 4, "▁ab": 5, "<0x78>": 6, "<0xC3>": 7},
    "merges": [["a", "b"], ["▁", "ab"]]}})json";

TEST(TokenizerJsonFuzz, GivesATokenizerOrAStatus) {
  const std::vector<std::string> words = {
      "null",       "-1",      "1e9",          "\"\"",          "[",     "]",     "{}", ",",
      "true",       "4194303", "\"Sequence\"", "\"Metaspace\"", "(a+)+", "\\\\K", "|",  "\"ab\"",
      "\"\\u0000\""};
  int loaded = 0;
  for (uint32_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::string file =
        mutated(seed % 2 == 0 ? kByteLevelFile : kMetaspaceFile, random, words);
    const auto parsed = nlohmann::json::parse(file, nullptr, false);
    if (parsed.is_discarded()) continue;
    const auto tokenizer = make_json_tokenizer(parsed, TokenizerConfig());
    if (!tokenizer.ok()) continue;
    ++loaded;
    use(**tokenizer);
  }
  EXPECT_GT(loaded, 100);
}

// Each value of a valid file is replaced by each of these in turn.
TEST(TokenizerJsonFuzz, SurvivesEveryValueOfAnotherKind) {
  const nlohmann::json values[] = {nullptr,
                                   true,
                                   -1,
                                   3,
                                   1e300,
                                   "",
                                   "x",
                                   nlohmann::json::array(),
                                   nlohmann::json::object(),
                                   {1, "a"},
                                   {{"type", "Sequence"}}};
  for (const char* source : {kByteLevelFile, kMetaspaceFile}) {
    const nlohmann::json file = nlohmann::json::parse(source);
    const nlohmann::json flat = file.flatten();
    for (const auto& [path, old] : flat.items()) {
      nlohmann::json::json_pointer place(path);
      for (; !place.empty(); place = place.parent_pointer()) {
        for (const nlohmann::json& value : values) {
          nlohmann::json changed = file;
          changed[place] = value;
          const auto tokenizer = make_json_tokenizer(changed, TokenizerConfig());
          if (tokenizer.ok()) use(**tokenizer);
        }
      }
    }
  }
}

TEST(ChatTemplateFuzz, GivesAPromptOrAStatus) {
  const std::string sources[] = {
      "{%- set ns = namespace(n=0) %}{% for m in messages if m.role != 'x' -%}\n"
      "  {% if loop.first and m['content'] is string %}{{ m.content | trim ~ '|' }}"
      "{%- elif not loop.last %}{{ m.content[1:-1].split(' ') | join('-') }}{% else %}"
      "{{ [m, {'k': ns.n}] | tojson(indent=2) }}{% endif %}{% set ns.n = ns.n + 1 %}\n{% endfor %}"
      "{# note #}{{ '<|a|>' if add_generation_prompt }}",
      "{% macro f(a, b=2) %}[{{ a ~ b }}]{% endmacro %}{% set x, y = (f(1), f(b=3, a=-4 // 3)) %}"
      "{{ x }}{{ y.upper().replace('[', '(') }}{{ messages | map(attribute='role') | list }}"
      "{{ messages | selectattr('role', 'equalto', 'user') | list | length % 2 == 0 }}"
      "{% set z %}{{ range(3) | list }}{% endset %}{{ z | reverse | title | indent(2) }}"};
  const std::vector<std::string> words = {
      "{%",       "%}",     "{{",         "}}",       "-",  "(",      ")",        "[",
      "]",        "|",      "~",          "messages", "ns", "loop",   " if ",     " else ",
      "not ",     "endfor", "9999999999", "'",        "**", "[::-1]", ".items()", "range(99999)",
      "* 1000000"};
  int rendered = 0;
  for (uint32_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto parsed = ChatTemplate::parse(mutated(sources[seed % 2], random, words));
    if (!parsed.ok()) continue;
    const std::vector<ChatMessage> messages = {{"user", " a b c "}, {"assistant", "ä\xFF"}};
    const auto segments = (*parsed)->render({messages}, {"<s>", "</s>", true, 0});
    rendered += segments.ok() ? 1 : 0;
  }
  EXPECT_GT(rendered, 100);
}

}  // namespace
}  // namespace tessera
