// Grammars that xgrammar compiles, over a vocabulary of bytes.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/sampling.h"
#include "server/chat/tool_format.h"
#include "server/chat/tool_grammar.h"
#include "server/grammar/grammar_compiler.h"
#include "server/grammar/make_spec.h"
#include "server/grammar/schema.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Kind = GrammarSpec::Kind;

constexpr int32_t kEnd = 256;

// Returns: true if a text that the grammar of bytes allows may begin so.
bool may_begin(const TokenGrammar& grammar, std::string_view text) {
  const auto constraint = grammar.begin();
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words(kEnd + 1)));
  for (const char c : text) {
    constraint->fill(mask);
    if (!allows(mask.data(), static_cast<uint8_t>(c))) {
      return false;
    }
    constraint->accept(static_cast<uint8_t>(c));
  }
  return true;
}

class Xgrammar : public testing::Test {
 protected:
  static GrammarVocabulary vocabulary() {
    GrammarVocabulary made;
    for (int byte = 0; byte < 256; ++byte) {
      made.bytes.emplace_back(1, static_cast<char>(byte));
    }
    made.bytes.emplace_back();  // the end of sequence
    made.end_ids = {kEnd};
    return made;
  }

  void SetUp() override {
    compiler = GrammarCompiler::create(vocabulary(), {.time = milliseconds(1000)});
    if (compiler == nullptr) {
      GTEST_SKIP() << "built without xgrammar";
    }
  }

  // Returns: true if the text follows the grammar and may end.
  bool matches(const absl::StatusOr<GrammarSpec>& spec, std::string_view text) const {
    EXPECT_TRUE(spec.ok()) << spec.status();
    const absl::StatusOr<CompiledGrammar> compiled = compiler->compile(*spec);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    if (!compiled.ok()) {
      return false;
    }
    const auto constraint = compiled->grammar->begin();
    std::vector<uint32_t> mask(static_cast<size_t>(mask_words(kEnd + 1)));
    for (const char c : text) {
      constraint->fill(mask);
      if (!allows(mask.data(), static_cast<uint8_t>(c))) {
        return false;
      }
      constraint->accept(static_cast<uint8_t>(c));
    }
    constraint->fill(mask);
    return allows(mask.data(), kEnd);
  }
  bool valid(std::string_view schema, std::string_view text) const {
    return matches(schema_text_spec(std::string(schema), "f"), text);
  }

  std::unique_ptr<GrammarCompiler> compiler;
};

TEST_F(Xgrammar, FollowsASchema) {
  constexpr const char* kSchema = R"({"type":"object","properties":{"name":{"type":"string"},
      "age":{"type":"integer","minimum":0,"maximum":150}},"required":["name","age"]})";
  EXPECT_TRUE(valid(kSchema, R"({"name":"Bob", "age":32})"));
  EXPECT_TRUE(valid(kSchema, "{\n  \"name\": \"B\\\"ob\",\n  \"age\": 0\n}"));
  EXPECT_FALSE(valid(kSchema, R"({"name":"Bob"})"));
  EXPECT_FALSE(valid(kSchema, R"({"name":"Bob","age":151})"));
  EXPECT_FALSE(valid(kSchema, R"({"name":"Bob","age":32,"x":1})"));
  EXPECT_FALSE(valid(kSchema, R"({"name":"Bob","age":32)"));
}

TEST_F(Xgrammar, AllowsNeitherControlCharactersNorBadUtf8InAString) {
  for (const char* const schema :
       {R"({"type":"string"})", R"({"type":"string","minLength":1})",
        R"({"type":"string","maxLength":3})", R"({"type":"string","pattern":"^.{1,3}$"})",
        R"({"type":"string","pattern":"^[^a]$"})", R"({"type":"object"})"}) {
    const bool object = std::string_view(schema).find("object") != std::string_view::npos;
    const std::string begin = object ? "{\"" : "\"";
    const std::string end = object ? "\":1}" : "\"";
    EXPECT_TRUE(valid(schema, begin + "x" + end)) << schema;
    for (const char* const character : {"\xED\x9F\xBF", "\xEE\x80\x80", "\xF0\x9F\xA6\xB9"}) {
      EXPECT_TRUE(valid(schema, begin + character + end)) << schema;
    }
    for (const char* const none : {"\xED\xA0\x80", "\xED\xBF\xBF", "\xC0\x80", "\x80"}) {
      EXPECT_FALSE(valid(schema, begin + none + end)) << schema << " and no UTF-8";
    }
    for (const char control : {'\0', '\1', '\b', '\t', '\n', '\r', '\x1f'}) {
      EXPECT_FALSE(valid(schema, begin + std::string(1, control) + end))
          << schema << " and character " << int{control};
    }
  }
}

TEST_F(Xgrammar, CompilesALongBoundOfATextAsFastAsAShortOne) {
  for (const char* const bound : {"1", "7", "50", "10000"}) {
    const int64_t most = std::atoi(bound);
    const std::string schema = fmt::format(R"({{"type":"string","maxLength":{}}})", most);
    const auto spec = schema_text_spec(schema, "f");
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto compiled = compiler->compile(*spec);
    ASSERT_TRUE(compiled.ok()) << schema << ": " << compiled.status();
    EXPECT_LT(compiled->bytes, 1 << 20) << schema;
    const auto text = [](int64_t characters) {
      std::string made = "\"";
      for (int64_t i = 0; i < characters; ++i) {
        made += i % 2 == 0 ? "a" : "\xC3\xA9";
      }
      return made + "\"";
    };
    EXPECT_TRUE(valid(schema, text(0)));
    EXPECT_TRUE(valid(schema, text(most)));
    EXPECT_FALSE(valid(schema, text(most + 1)));
  }
}

constexpr const char* kWords[] = {
    "a\"",
    "ab",
    "abc",
    "abcdefghij",
    "\",",
    "\", \"",
    "a\",\"b",
    "ab\"]",
    "\"]",
    "\"}",
    "[\"",
    "{\"",
    "\":",
    "\": \"",
    "a\": \"",
    "\xC3\xA9",
    "\\n",
    "a\xC3",
    "\xA9\"",
    "\xC3\xA9\"",
    "\xE2\x82",
    "\n\"",
    "  ",
    "null",
    "aaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaa\"",
    "\"aaaaaaaaaaaaaaaaaaaaaaaa",
    "[\"aaaaaaaaaaaaaaaaaaaaaaaa",
    "\"bbbbb\"",
    "]]",
    "]]]",
    "],[",
};

// Follows random tokens and expects each mask to allow the words whose bytes may follow.
void expect_words_allowed_as_bytes(const TokenGrammar& grammar, const TokenGrammar& of_bytes,
                                   const GrammarVocabulary& words, uint32_t seed) {
  std::mt19937 random(seed);
  const auto constraint = grammar.begin();
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words(std::ssize(words.bytes))));
  std::string text;
  for (int step = 0; step < 30; ++step) {
    constraint->fill(mask);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < std::ssize(words.bytes); ++token) {
      const std::string& bytes = words.bytes[static_cast<size_t>(token)];
      const bool may_come = allows(mask.data(), token);
      if (token > kEnd) {
        ASSERT_EQ(may_come, may_begin(of_bytes, text + bytes))
            << "'" << bytes << "' after '" << text << "'";
      }
      if (may_come && token != kEnd) {
        allowed.push_back(token);
      }
    }
    if (allowed.empty()) {
      return;
    }
    // Every other token is a word, if one may come.
    const auto word = std::upper_bound(allowed.begin(), allowed.end(), kEnd);
    const bool choose_word = step % 2 == 0 && word != allowed.end();
    const auto first = choose_word ? word : allowed.begin();
    const int32_t token = first[static_cast<int64_t>(random()) % (allowed.end() - first)];
    text += words.bytes[static_cast<size_t>(token)];
    constraint->accept(token);
  }
}

// A mask looks up the verdict on most tokens. It must agree with each byte of a token.
TEST_F(Xgrammar, AllowsTheTokensWhoseBytesItAllows) {
  GrammarVocabulary words = vocabulary();
  words.bytes.insert(words.bytes.end(), std::begin(kWords), std::end(kWords));
  const auto of_words = GrammarCompiler::create(words, {.time = milliseconds(1000)});
  for (const char* const schema :
       {R"({"type":"string","maxLength":3})", R"({"type":"string","maxLength":12})",
        R"({"type":"string","minLength":2,"maxLength":30})",
        R"({"type":"string","minLength":3,"maxLength":15})",
        R"({"anyOf":[{"type":"string","maxLength":4},{"type":"string","maxLength":15}]})",
        R"({"type":"array","items":{"type":"string","maxLength":9},"maxItems":3})",
        R"({"type":"object","required":["a","b"],"properties":{"a":{"type":"string","maxLength":5},
               "b":{"type":["string","null"],"maxLength":25}}})",
        R"({"anyOf":[{"type":"string","maxLength":4},{"const":"abcdefghij"},
               {"type":"string","minLength":3,"maxLength":15}]})"}) {
    const auto spec = schema_text_spec(schema, "f");
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto grammar = of_words->compile(*spec);
    const auto of_bytes = compiler->compile(*spec);
    ASSERT_TRUE(grammar.ok() && of_bytes.ok()) << schema;
    for (uint32_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(testing::Message() << schema << ", seed " << seed);
      expect_words_allowed_as_bytes(*grammar->grammar, *of_bytes->grammar, words, seed);
    }
  }
}

// Follows random tokens of a grammar for at most `steps` steps.
// Returns: the tokens, and the mask before each.
struct Walk {
  std::vector<int32_t> tokens;
  std::vector<std::vector<uint32_t>> masks;
};
Walk walk(const TokenGrammar& grammar, int64_t vocab, uint32_t seed, int steps) {
  std::mt19937 random(seed);
  const auto constraint = grammar.begin();
  Walk walked;
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words(vocab)));
  for (int step = 0; step < steps; ++step) {
    constraint->fill(mask);
    walked.masks.push_back(mask);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < vocab; ++token) {
      if (token != kEnd && allows(mask.data(), token)) {
        allowed.push_back(token);
      }
    }
    if (allowed.empty()) {
      break;
    }
    walked.tokens.push_back(allowed[random() % allowed.size()]);
    constraint->accept(walked.tokens.back());
  }
  return walked;
}

// Masks that were computed before are kept for states that agree in all inputs of a mask.
TEST_F(Xgrammar, KeepsMasksOfEqualStatesAlone) {
  GrammarVocabulary words = vocabulary();
  words.bytes.insert(words.bytes.end(), std::begin(kWords), std::end(kWords));
  const auto of_words = GrammarCompiler::create(words, {.time = milliseconds(1000)});
  const auto schema = [](const char* text) { return *schema_text_spec(text, "f"); };
  for (const GrammarSpec& spec :
       {schema(R"({"type":"string"})"), schema(R"({"type":"string","minLength":2})"),
        schema(R"({"type":"string","maxLength":12})"),
        schema(R"({"type":["number","string","array"]})"),
        schema(R"({"type":"array","maxItems":3,"items":{"type":"array","minItems":2,
                   "items":{"type":["string","integer"]}}})"),
        schema(R"({"anyOf":[{"type":"string"},{"type":"string","pattern":"^a+b?$"},
                   {"const":"aaaaaaaa"}]})"),
        schema(R"({"type":"object","additionalProperties":{"type":"object","required":["a","b"],
                   "properties":{"a":{"type":"string"},"b":{"type":"string","maxLength":9}}}})"),
        schema(R"({"$defs":{"t":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/t"},
                   {"type":"string"}]}}},"$ref":"#/$defs/t"})"),
        GrammarSpec{Kind::json, "object"}, GrammarSpec{Kind::regex, "(ab|a*c|[^x]{2})*"},
        GrammarSpec{Kind::gbnf, "root ::= a | b\na ::= a \"a\" | \"b\"\nb ::= \"b\" b | [ab]"},
        GrammarSpec{Kind::gbnf, "root ::= \"a\" root \"b\" | [a-c] root | \"\""}}) {
    const auto compiled = [&] {  // shares no mask with others
      const auto grammar = of_words->compile(spec);
      EXPECT_TRUE(grammar.ok()) << grammar.status();
      return grammar->grammar;
    };
    const int64_t vocab = std::ssize(words.bytes);
    const auto followed = compiled();
    for (uint32_t seed = 0; seed < 40; ++seed) {
      walk(*followed, vocab, seed, 50);
    }
    for (uint32_t seed = 0; seed < 6; ++seed) {
      const Walk walked = walk(*followed, vocab, seed, 25);
      for (size_t i = 0; i < walked.masks.size(); ++i) {
        const auto constraint = compiled()->begin();
        std::for_each_n(walked.tokens.begin(), i, [&](int32_t t) { constraint->accept(t); });
        std::vector<uint32_t> expected(walked.masks[i].size());
        constraint->fill(expected);
        ASSERT_EQ(walked.masks[i], expected)
            << spec.text << " after " << i << " of " << testing::PrintToString(walked.tokens);
      }
    }
  }
}

TEST_F(Xgrammar, FollowsRegexesChoicesAndGbnf) {
  EXPECT_TRUE(matches(notation_spec(Kind::regex, "[0-9]{3}-a+", "f"), "123-aa"));
  EXPECT_FALSE(matches(notation_spec(Kind::regex, "[0-9]{3}-a+", "f"), "12-aa"));
  const std::vector<std::string> choices{"yes", "n\"o\\"};
  EXPECT_TRUE(matches(choice_spec(choices, "f"), "n\"o\\"));
  EXPECT_FALSE(matches(choice_spec(choices, "f"), "no"));
  EXPECT_TRUE(matches(notation_spec(Kind::gbnf, "root ::= \"a\" root | \"b\"", "f"), "aaab"));
  EXPECT_TRUE(matches(GrammarSpec{Kind::json, "object"}, R"({"a":[1,{"b":null}]})"));
  EXPECT_FALSE(matches(GrammarSpec{Kind::json, "object"}, "[1]"));
}

// A choice of random characters. Escapes of a grammar read on where a digit follows.
TEST_F(Xgrammar, MatchesAChoiceAsItIs) {
  constexpr std::string_view kParts[] = {"\n", "\r", "\t", "\x01", "\x1f", "\x7f", "0",
                                         "a",  "F",  "\\", "\"",   "'",    " ",    "#",
                                         "|",  "é",  "你", "😀",    "]"};
  std::mt19937 random(5);
  std::vector<std::string> choices{"a\nb",
                                   "1\n2",
                                   "ok\ncafe",
                                   "\x1f"
                                   "f",
                                   "\\n",
                                   "\\u000a"};
  for (int i = 0; i < 40; ++i) {
    std::string& made = choices.emplace_back("z");
    for (int part = 0; part < 6; ++part) {
      made += kParts[random() % std::size(kParts)];
    }
  }
  const auto spec = choice_spec(choices, "f");
  for (const std::string& choice : choices) {
    EXPECT_TRUE(matches(spec, choice)) << testing::PrintToString(choice);
  }
  EXPECT_TRUE(valid(R"({"enum":["a\nb","1\n2"]})", R"("1\n2")"));
  EXPECT_TRUE(matches(GrammarSpec{Kind::structural_tag, R"({"type":"structural_tag","format":
      {"type":"const_string","value":"1\n2"}})"},
                      "1\n2"));
  EXPECT_FALSE(matches(spec, "a\xC2\xAB"));
  EXPECT_FALSE(matches(spec, "1\xC2\xA2"));
}

TEST_F(Xgrammar, FollowsANumberWhoseFormatHasNoGrammar) {
  constexpr const char* kSchema = R"({"type":"object","properties":{"n":{"type":"integer",
      "format":"int32","minimum":3}},"required":["n"]})";
  EXPECT_TRUE(valid(kSchema, R"({"n":3})"));
  EXPECT_FALSE(valid(kSchema, R"({"n":2})"));
  EXPECT_FALSE(valid(kSchema, R"({"n":"3"})"));
}

TEST_F(Xgrammar, FollowsAPatternOrABoundBesideAFormat) {
  constexpr const char* kPattern = R"({"type":"string","format":"email","pattern":"^a+$"})";
  EXPECT_TRUE(valid(kPattern, "\"aa\""));
  EXPECT_FALSE(valid(kPattern, "\"b@b.de\""));
  constexpr const char* kBound = R"({"type":"string","format":"uri","maxLength":3})";
  EXPECT_TRUE(valid(kBound, "\"a:b\""));
  EXPECT_FALSE(valid(kBound, "\"a:bc\""));
}

GrammarSpec forced_call(const ToolFormat& format) {
  const auto parameters = nlohmann::ordered_json::parse(R"({"type":"object","properties":{
      "city":{"type":"string","maxLength":5},"days":{"type":"integer","minimum":1,"maximum":7},
      "unit":{"enum":["c","f"]},"tags":{"type":"array","items":{"type":"string"},"maxItems":2}},
      "required":["city","days"]})");
  const ToolUse use{.tools = {{.name = "f", .parameters = parameters, .strict = true}},
                    .choice = ToolUse::Choice::required};
  std::vector<std::string> left_out;
  const auto spec = tool_grammar(use, format, left_out);
  EXPECT_TRUE(spec.ok() && *spec) << spec.status();
  return spec.value_or(std::nullopt).value_or(GrammarSpec());
}

TEST_F(Xgrammar, ForcesCallsInTheNotationOfQwenCoder) {
  const GrammarSpec spec = forced_call(kQwenXmlFormat);
  const auto call = [](const std::string& parameters) {
    return "<function=f>\n" + parameters + "\n</function>\n</tool_call>";
  };
  const std::string city = "<parameter=city>\nParis\n</parameter>";
  EXPECT_TRUE(matches(spec, call(city + "\n<parameter=days>\n3\n</parameter>")));
  EXPECT_TRUE(matches(spec, call(city + "\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nc\n"
                                        "</parameter>\n<parameter=tags>\n[\"a\"]\n</parameter>")));
  EXPECT_FALSE(matches(spec, call(city + "\n<parameter=days>\n8\n</parameter>")));
  EXPECT_FALSE(
      matches(spec, call(city + "\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nk\n"
                                "</parameter>")));
  EXPECT_FALSE(matches(spec, call(city)));
  EXPECT_FALSE(matches(spec, call("<parameter=city>\nLondon\n</parameter>\n<parameter=days>\n3\n"
                                  "</parameter>")));
}

TEST_F(Xgrammar, CompilesForcedCallsOfEachNotation) {
  for (const ToolFormat* const format : tool_formats()) {
    const GrammarSpec spec = forced_call(*format);
    const auto compiled = compiler->compile(spec);
    ASSERT_TRUE(compiled.ok()) << format->name << ": " << compiled.status();
  }
}

TEST_F(Xgrammar, AllowsNothingAfterATokenThatMayNotCome) {
  const auto compiled = compiler->compile({Kind::regex, "ab"});
  ASSERT_TRUE(compiled.ok());
  const auto constraint = compiled->grammar->begin();
  constraint->accept('x');
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words(kEnd + 1)), ~0u);
  constraint->fill(mask);
  EXPECT_THAT(mask, testing::Each(0u));
}

// The library warns of parts it ignores; this server does not promise more than it enforces.
TEST_F(Xgrammar, RefusesWhatTheLibraryWouldIgnore) {
  for (const char* const schema :
       {R"({"type":"number","multipleOf":0.5})",
        R"({"oneOf":[{"type":"string","minLength":3},{"type":"string","maxLength":5}]})",
        R"({"type":"string","pattern":"a+","maxLength":5})"}) {
    const auto spec = schema_text_spec(schema, "f");
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(compiler->compile(*spec).status().code(), absl::StatusCode::kInvalidArgument)
        << schema;
  }
}

TEST_F(Xgrammar, RefusesWhatItCannotRead) {
  for (const GrammarSpec& spec :
       {GrammarSpec{Kind::gbnf, "root ::= nowhere"}, GrammarSpec{Kind::gbnf, "x"},
        GrammarSpec{Kind::regex, "a(?=b)"}, GrammarSpec{Kind::regex, "(a"},
        GrammarSpec{Kind::structural_tag, "{}"}}) {
    EXPECT_EQ(compiler->compile(spec).status().code(), absl::StatusCode::kInvalidArgument)
        << spec.text;
  }
}

// Each rule leads to the next in two ways, so a text has 2^100 derivations.
TEST_F(Xgrammar, RefusesAnAmbiguousGrammarBeforeItIsCompiledForAllTokens) {
  std::string rules = "root ::= r0\n";
  for (int i = 0; i < 100; ++i) {
    rules += fmt::format("r{} ::= r{} r{} | r{}\n", i, i + 1, i + 1, i + 1);
  }
  EXPECT_EQ(compiler->compile({Kind::gbnf, rules + "r100 ::= \"x\""}).status().code(),
            absl::StatusCode::kInvalidArgument);
  constexpr const char* kSums =
      "root ::= sum\nsum ::= term (\"+\" term)*\nterm ::= digits | \"(\" sum \")\"\n"
      "digits ::= [0-9]+";
  EXPECT_TRUE(matches(GrammarSpec{Kind::gbnf, kSums}, "1+(23+4)"));
}

// The library takes a hundred times as long for this schema. It leaves the library by an exception,
// and the compiler serves the next request.
TEST_F(Xgrammar, GivesUpWhatTakesTooLong) {
  nlohmann::ordered_json schema = {{"type", "object"}};
  for (int i = 0; i < 500; ++i) {
    schema["properties"]["p" + std::to_string(i)] = {{"type", "string"}};
  }
  const auto spec = schema_spec(schema, "f");
  ASSERT_TRUE(spec.ok());
  const auto hasty = GrammarCompiler::create(vocabulary(), {.time = milliseconds(1)});
  const absl::Status status = hasty->compile(*spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes too long"));
  EXPECT_TRUE(hasty->compile({Kind::regex, "a"}).ok());
}

}  // namespace
}  // namespace tessera
