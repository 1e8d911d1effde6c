// Grammars of the texts that custom tools take, as the text stands in the JSON of a call.

#include "server/grammar/input_grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/ops/sampling.h"
#include "server/chat/custom_input.h"
#include "server/chat/tool_grammar.h"
#include "server/grammar/grammar_compiler.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr int32_t kTextEnd = 256;

constexpr const char* kPatch = R"(start: begin hunk+ end   // a patch
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?

hunk: add | remove
    | update -> changed
add: "*** Add File: " name LF ("+" /(.*)/ LF)+
remove.2: "*** Delete File: " name LF
update: "*** Update File: " name LF [move] line ~ 1..3
?move: "*** Move to: " name LF
!line: ("+" | "-" | " ") /(.*)/ LF
name: /(.+)/
%import common.LF
)";

class InputGrammar : public testing::Test {
 protected:
  void SetUp() override {
    GrammarVocabulary bytes;
    for (int byte = 0; byte < 256; ++byte) {
      bytes.bytes.emplace_back(1, static_cast<char>(byte));
    }
    bytes.bytes.emplace_back();  // the end of sequence
    bytes.end_ids = {kTextEnd};
    compiler = GrammarCompiler::create(bytes, {.time = std::chrono::milliseconds(4000)});
    if (compiler == nullptr) {
      GTEST_SKIP() << "built without xgrammar";
    }
  }

  // Returns: true if a call of the tool may have this input, and end after it.
  bool takes(std::string_view syntax, std::string_view definition, const std::string& input,
             ToolUse::Choice choice = ToolUse::Choice::required) const {
    absl::StatusOr<std::string> grammar =
        input_grammar(syntax, definition, R"({"input": ")", R"("})");
    EXPECT_TRUE(grammar.ok()) << definition << grammar.status();
    ToolUse use{.choice = choice};
    use.tools.push_back({.name = "p"});
    use.tools.back().custom = true;
    use.tools.back().input_grammar = grammar.value_or("");
    std::vector<std::string> left_out;
    const auto spec = tool_grammar(use, kHermesFormat, left_out);
    EXPECT_THAT(left_out, testing::IsEmpty());
    EXPECT_TRUE(spec.ok() && spec->has_value()) << spec.status();
    const bool forced = choice == ToolUse::Choice::required;
    return matches(
        **spec, fmt::format("{}{{\"name\": \"p\", \"arguments\": {}}}\n</tool_call>",
                            forced ? "" : "Well.<tool_call>\n", custom_arguments(input).value()));
  }

  bool matches(const GrammarSpec& spec, const std::string& text) const {
    const absl::StatusOr<CompiledGrammar> compiled = compiler->compile(spec);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    if (!compiled.ok()) {
      return false;
    }
    const auto constraint = compiled->grammar->begin();
    std::vector<uint32_t> mask(static_cast<std::size_t>(mask_words(kTextEnd + 1)));
    for (const char c : text) {
      constraint->fill(mask);
      if (!allows(mask.data(), static_cast<uint8_t>(c))) {
        return false;
      }
      constraint->accept(static_cast<uint8_t>(c));
    }
    constraint->fill(mask);
    return allows(mask.data(), kTextEnd);
  }

  std::unique_ptr<GrammarCompiler> compiler;
};

TEST_F(InputGrammar, BindsAPatch) {
  const std::string begin = "*** Begin Patch\n";
  for (const char* const hunk :
       {"*** Add File: a b.c\n+int main() { return \"\\\\t\"; }\n+\n", "*** Delete File: x\n",
        "*** Update File: x\n*** Move to: y\n-\ta\n+\u00e9\n"}) {
    for (const auto choice : {ToolUse::Choice::required, ToolUse::Choice::automatic}) {
      EXPECT_TRUE(takes("lark", kPatch, begin + hunk + "*** End Patch", choice)) << hunk;
    }
  }
  for (const char* const hunk : {"", "*** Add File: \n+x\n", "*** Add File: a\nx\n",
                                 "*** Update File: x\n-1\n-2\n-3\n-4\n", "*** Delete File: x"}) {
    EXPECT_FALSE(takes("lark", kPatch, begin + hunk + "*** End Patch")) << hunk;
  }
}

// Each character that JSON escapes, and classes with and without it.
TEST_F(InputGrammar, ReadsRegularExpressions) {
  struct Example {
    const char* regex;
    std::vector<std::string> in;
    std::vector<std::string> out;
  };
  for (const Example& example :
       std::vector<Example>{{"^a.c$",
                             {"abc", "a\"c", "a\\c", "a\tc", "a\u20acc",
                              "a\x01"
                              "c"},
                             {"a\nc", "ac", "abcd"}},
                            {"[^a-c\\n]+", {"d\"\\", "\u00e9"}, {"a", "d\n", ""}},
                            {"\\d{2,3}|\\w+?-", {"12", "123", "a_-"}, {"1", "1234", "-"}},
                            {"(?:x|(?P<n>yz))*", {"", "xyzx"}, {"y"}},
                            {"[\\]\\-\"\\\\x]+", {"]-\"\\x"}, {"[", "y"}},
                            {"[^\\s\"]+\\s", {"ab\n", "a "}, {"a", "\"\n", "\u00a0 "}},
                            {"\\x41\\u00e9\\.", {"A\u00e9."}, {"A\u00e9x"}},
                            {"[^\\w]", {"-", " "}, {"a", "\u00e9"}}}) {
    for (const std::string& text : example.in) {
      EXPECT_TRUE(takes("regex", example.regex, text)) << example.regex << " " << text;
    }
    for (const std::string& text : example.out) {
      EXPECT_FALSE(takes("regex", example.regex, text)) << example.regex << " " << text;
    }
  }
}

TEST_F(InputGrammar, ReadsTheRestOfLarksNotation) {
  const char* const lark = R"(start: (WORD | NUM | "y"i | STR) ("," WS_INLINE? start)?
WORD: "a".."f" /[g-z]+/i
%import common (WS_INLINE)
%import common.SIGNED_INT -> NUM
%import common.ESCAPED_STRING -> STR
)";
  for (const char* const text : {"aGH", "-12, Y", "y,bz", "\"a\\\"b\",7"}) {
    EXPECT_TRUE(takes("lark", lark, text)) << text;
  }
  for (const char* const text : {"a", "gg", "1.5", "y,", "\"a"}) {
    EXPECT_FALSE(takes("lark", lark, text)) << text;
  }
}

std::string repeated(std::string_view part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) {
    out += part;
  }
  return out;
}

TEST(InputGrammarErrors, NameThePart) {
  for (const auto& [syntax, definition, error] :
       std::vector<std::tuple<const char*, std::string, const char*>>{
           {"lark", "start: \"a\"\n%ignore \" \"", "a directive other than %import in line 2"},
           {"lark", "start: b", "has no rule b"},
           {"lark", "b: \"a\"", "has no rule start"},
           {"lark", "start: \"a", "a text without an end"},
           {"lark", "start: a{b}", "a template"},
           {"lark", "start: /a(?=b)/", "a group with (?"},
           {"lark", "start: /a/m", "the flags m"},
           {"lark", "start: \"a\" ~ x", "repeats"},
           {"lark", "start: \"a\"\nstart: \"b\"", "a second rule"},
           {"lark", "start \"a\"", "no colon"},
           {"lark", "start: " + std::string(100, '('), "too many levels"},
           {"lark", "%import python.NAME\nstart: NAME", "not of common"},
           {"regex", std::string(100, '('), "too many levels"},
           {"regex", "a\\1", "\\1"},
           {"regex", "\\bx", "\\b"},
           {"regex", "[b-a]", "a range"},
           {"regex", "a{,3}", "a '{'"},
           {"regex", "x*+", "possessive"},
           {"regex", "a)", "unmatched"},
           {"regex", "[a", "unmatched ["},
           {"regex", "\\", "a \\"},
           {"regex", std::string(70'000, 'a'), "bytes"},
           {"regex", std::string(60'000, '.'), "too many classes"},
           {"lark", "start: " + repeated("/./ ", 10'000), "too many terminals"},
           {"lark", "start: " + repeated("\"a\" ", 10'000), "10000 parts"},
           {"ebnf", "x", "neither lark nor regex"}}) {
    const auto made = input_grammar(syntax, definition, "", "");
    ASSERT_FALSE(made.ok()) << definition;
    EXPECT_THAT(std::string(made.status().message()), HasSubstr(error)) << definition;
  }
}

}  // namespace
}  // namespace tessera
