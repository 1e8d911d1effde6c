// Answers of chats split into thoughts, content and calls of tools, however the text is cut.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "server/chat/answer_reader.h"
#include "server/chat/python_literal.h"
#include "server/chat/tool_grammar.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// An answer in one line: thoughts in «», content, and calls as name(arguments).
std::string print(const AnswerPart& answer) {
  std::string text = answer.reasoning.empty() ? "" : "«" + answer.reasoning + "»";
  text += answer.content;
  for (const CallPart& call : answer.calls) {
    text += "|" + call.name + "(" + call.arguments + ")";
  }
  return text;
}

// Joins the parts of an answer. Each call begins once, with an id.
void append(AnswerPart& all, const AnswerPart& part) {
  all.reasoning += part.reasoning;
  all.content += part.content;
  for (const CallPart& call : part.calls) {
    const auto index = static_cast<size_t>(call.index);
    EXPECT_EQ(call.id.empty(), call.name.empty());
    if (index == all.calls.size()) {
      EXPECT_FALSE(call.id.empty());
      all.calls.push_back(call);
    } else {
      ASSERT_LT(index, all.calls.size());
      EXPECT_TRUE(call.id.empty());
      all.calls[index].arguments += call.arguments;
    }
  }
}

std::string read(const AnswerNotation& notation, const std::vector<std::string>& pieces) {
  AnswerReader reader(notation);
  AnswerPart all;
  for (const std::string& piece : pieces) {
    AnswerPart part;
    reader.push(piece, false, part);
    append(all, part);
  }
  AnswerPart part;
  reader.push("", true, part);
  append(all, part);
  return print(all);
}

struct Case {
  const char* format;
  const char* text;
  const char* expected;
  bool forced = false;
};

AnswerNotation notation_of(const Case& some) {
  return {.tools = find_tool_format(some.format), .forced = some.forced, .thoughts = !some.forced};
}

class Answer : public testing::TestWithParam<Case> {};

TEST_P(Answer, IsReadAsAWhole) {
  EXPECT_EQ(read(notation_of(GetParam()), {GetParam().text}), GetParam().expected);
}

TEST_P(Answer, IsTheSameByteByByteAndInRandomPieces) {
  const std::string text = GetParam().text;
  std::vector<std::string> bytes;
  for (const char c : text) {
    bytes.emplace_back(1, c);
  }
  EXPECT_EQ(read(notation_of(GetParam()), bytes), GetParam().expected);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::string> pieces(1);
    for (const char c : text) {
      if (random() % 4 == 0) {
        pieces.emplace_back();
      }
      pieces.back() += c;
    }
    EXPECT_EQ(read(notation_of(GetParam()), pieces), GetParam().expected) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hermes, Answer,
    testing::Values(
        Case{"hermes", "Just text, <tool and more.\n", "Just text, <tool and more.\n"},
        Case{"hermes",
             "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": "
             "\"}\\\"\"}]}}\n</tool_call>",
             "|f({\"a\": [1, {\"b\": \"}\\\"\"}]})"},
        Case{"hermes",
             "Well.\n\n<tool_call>{\"arguments\":{},\"name\":\"f\"}</tool_call>\n"
             "<tool_call>{\"name\":\"g\"}</tool_call>\n",
             "Well.|f({})|g({})"},
        Case{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"cut he",
             "|f({\"a\": \"cut he)"},
        Case{"hermes", "<tool_call>not a call</tool_call> then",
             "<tool_call>not a call</tool_call> then"},
        Case{"hermes", "a <tool_call>{\"na", "a<tool_call>{\"na"},
        Case{"hermes",
             "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
             "|f({\"a\": 1})"},
        Case{"hermes", "<think>\nHm, <tool_call>?\n</think>\n\n<tool_call>{\"name\":\"f\"}",
             "«Hm, <tool_call>?»|f({})"},
        Case{"hermes", "<think>never ends", "«never ends»"},
        Case{"hermes", "<thin air", "<thin air"},
        Case{"hermes",
             "{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>\n"
             "{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
             "|f({\"x\": 1})|g({})", true}));

INSTANTIATE_TEST_SUITE_P(
    Mistral, Answer,
    testing::Values(Case{"mistral",
                         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": "
                         "\"g\", \"arguments\": {}}]",
                         "|f({\"a\": 1})|g({})"},
                    Case{"mistral", "Yes. [TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g{}",
                         "Yes.|f({\"a\": 1})|g({})"},
                    Case{"mistral", "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", "|f({})"},
                    Case{"mistral", "[TOOL_CALLS]", ""}, Case{"mistral", "[1, 2]", "[1, 2]"},
                    Case{"mistral", "[{\"name\": \"f\", \"arguments\": {}}]", "|f({})", true}));

INSTANTIATE_TEST_SUITE_P(
    Llama, Answer,
    testing::Values(
        Case{"llama3_json", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "|f({\"a\": 1})"},
        Case{"llama3_json",
             "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", "
             "\"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
             "|f({})|g({})"},
        Case{"llama3_json", "{\"answer\": 42}", "{\"answer\": 42}"},
        Case{"llama3_json", "So {\"name\": 1}", "So {\"name\": 1}"},
        Case{"llama3_json", "Look: <|python_tag|>{\"name\": \"f\"}", "Look:|f({})"},
        Case{"llama3_json", " ", " "},
        Case{"pythonic", "[f(a=1, b='it\\'s', c=[1, None], d={\"k\": True}), g()]",
             "|f({\"a\": 1, \"b\": \"it's\", \"c\": [1, null], \"d\": {\"k\": true}})|g({})"},
        Case{"pythonic", "[see above] and more", "[see above] and more"},
        Case{"pythonic", "[1, 2]", "[1, 2]"}, Case{"pythonic", "[", "["},
        Case{"pythonic", "<|python_start|>[f(x=-1.5e3)]", "|f({\"x\": -1.5e3})"},
        Case{"pythonic", "[f(a=\"x), (\", b=", "|f({\"a\": \"x), (\")"},
        Case{"pythonic", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\"}",
             "|f({\"a\": 1})|g({})", true}));

TEST(AnswerReader, EndsAfterOneCallWhereOnlyOneIsAllowed) {
  AnswerReader reader({.tools = &kHermesFormat, .one_call = true});
  AnswerPart part;
  reader.push("<tool_call>{\"name\":\"f\"", false, part);
  EXPECT_FALSE(reader.complete());
  reader.push("}</tool_call><tool_call>{\"name\":\"g\"}", false, part);
  EXPECT_TRUE(reader.complete());
  EXPECT_EQ(print(part), "|f({})");
}

TEST(AnswerReader, ShowsArgumentsAsTheyCome) {
  AnswerReader reader({.tools = &kHermesFormat});
  AnswerPart part;
  reader.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"city\": \"Pa", false, part);
  EXPECT_EQ(print(part), "|f({\"city\": \"Pa)");
}

TEST(AnswerReader, HoldsNoEndlessBlanksBack) {
  AnswerReader reader({.tools = &kHermesFormat, .thoughts = true});
  AnswerPart part;
  for (int i = 0; i < 5'000; ++i) {
    reader.push("\n", false, part);
  }
  EXPECT_GT(part.content.size(), 3'000u);
}

TEST(AnswerReader, BeginsInAThoughtThatThePromptHasOpened) {
  EXPECT_EQ(read({.thoughts = true, .open_thought = true}, {"so\n</think>\n\n", "Hi"}), "«so»Hi");
}

TEST(ToolFormat, IsThatOfTheTemplate) {
  EXPECT_EQ(tool_format_of("... <tool_call> ...").name, "hermes");
  EXPECT_EQ(tool_format_of("{{ '[TOOL_CALLS]' }}").name, "mistral");
  EXPECT_EQ(tool_format_of("{{ '<|python_tag|>' }}").name, "llama3_json");
  EXPECT_EQ(tool_format_of("plain").name, "hermes") << "plain_tools.h writes it";
  EXPECT_EQ(find_tool_format("unheard_of"), nullptr);
}

TEST(PythonLiteral, BecomesJson) {
  EXPECT_EQ(python_to_json("{'a': (1, -2.5), \"b\": [True, None]}"),
            "{\"a\": [1, -2.5], \"b\": [true, null]}");
  EXPECT_EQ(python_to_json("'\\n\"'"), "\"\\n\\\"\"");
  for (const char* const bad : {"", "a", "1 +", "[1", "{'a'}", "'x", "f()", "1 2"}) {
    EXPECT_EQ(python_to_json(bad), std::nullopt) << bad;
  }
}

// ---- grammars

ToolUse two_tools(ToolUse::Choice choice) {
  return {.tools = {{.name = "f", .parameters = {{"type", "object"}}}, {.name = "g"}},
          .choice = choice};
}

json tree_of(const absl::StatusOr<std::optional<GrammarSpec>>& spec) {
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() && *spec ? json::parse((*spec)->text).at("format") : json();
}

TEST(ToolGrammar, ForcesCallsOfTheNamedTools) {
  ToolUse use = two_tools(ToolUse::Choice::required);
  json tree = tree_of(tool_grammar(use, kHermesFormat));
  EXPECT_EQ(tree.at("tags").size(), 2u);
  EXPECT_EQ(tree.at("stop_after_first"), false);
  EXPECT_EQ(tree.at("tags").at(1).at("begin"), R"({"name": "g", "arguments": )");
  use.only = "g";
  tree = tree_of(tool_grammar(use, kMistralFormat)).at("elements").at(1);
  EXPECT_EQ(tree.at("tags").size(), 1u);
  EXPECT_EQ(tree.at("stop_after_first"), true);
}

TEST(ToolGrammar, BindsFreeTextOnlyForStrictTools) {
  ToolUse use = two_tools(ToolUse::Choice::automatic);
  EXPECT_TRUE(tree_of(tool_grammar(use, kHermesFormat)).is_null());
  use.tools[0].strict = true;
  EXPECT_EQ(tree_of(tool_grammar(use, kHermesFormat)).at("type"), "triggered_tags");
}

TEST(ToolGrammar, RefusesASchemaOnlyOfAStrictTool) {
  ToolUse use = two_tools(ToolUse::Choice::required);
  use.tools[0].parameters = {{"type", "object"}, {"not", {{"type", "null"}}}};
  EXPECT_FALSE(tree_of(tool_grammar(use, kHermesFormat)).is_null());
  use.tools[0].strict = true;
  const absl::Status status = tool_grammar(use, kHermesFormat).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("f.parameters (strict): $.not"));
}

TEST(ToolGrammar, AllowsAnAnswerInJsonBesideCalls) {
  const ToolUse use = two_tools(ToolUse::Choice::automatic);
  const GrammarSpec other{GrammarSpec::Kind::json_schema, R"({"type":"integer"})",
                          "response_format"};
  EXPECT_EQ(tree_of(calls_or(use, kHermesFormat, other)).at("type"), "or");
  EXPECT_FALSE(calls_or(use, kMistralFormat, other).ok()) << "its marker is a special token";
}

}  // namespace
}  // namespace tessera
