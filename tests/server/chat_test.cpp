// Answers of chats split into thoughts, content and calls of tools, however the text is cut.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "server/chat/answer_reader.h"
#include "server/chat/argument_types.h"
#include "server/chat/chat_format.h"
#include "server/chat/python_literal.h"
#include "server/chat/tool_grammar.h"
#include "server/generation/service.h"
#include "tests/server/fake_engine.h"

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

// Types of the function f: each argument has the type of its name.
std::shared_ptr<const ArgumentTypes> argument_types() {
  const auto parameters = nlohmann::ordered_json::parse(R"({"type":"object","properties":{
      "text":{"type":"string"},"count":{"type":"integer"},"size":{"type":"number"},
      "flag":{"type":"boolean"},"list":{"type":"array"},"map":{"type":"object"},
      "maybe":{"type":["string","null"]},"either":{"anyOf":[{"type":"integer"},{"type":"string"}]},
      "kind":{"enum":["1","2"]},"level":{"enum":[1,2]},"place":{"$ref":"#/$defs/place"}},
      "$defs":{"place":{"type":"object","properties":{"x":{"type":"integer"}}}}})");
  const std::vector<Tool> tools{{.name = "f", .parameters = parameters}, {.name = "g"}};
  return std::make_shared<const ArgumentTypes>(tools);
}

AnswerNotation notation_of(const Case& some) {
  return {.tools = find_tool_format(some.format),
          .types = argument_types(),
          .forced = some.forced,
          .thoughts = !some.forced};
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

INSTANTIATE_TEST_SUITE_P(
    QwenXml, Answer,
    testing::Values(
        Case{"qwen3_coder",
             "I look.\n\n<tool_call>\n<function=f>\n<parameter=text>\nParis\n</parameter>\n"
             "<parameter=count>\n3\n</parameter>\n</function>\n</tool_call>",
             R"(I look.|f({"text": "Paris", "count": 3}))"},
        Case{"qwen3_coder",
             "<tool_call>\n<function=g>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n"
             "<parameter=flag>\nTrue\n</parameter>\n</function>\n</tool_call>",
             R"(|g({})|f({"flag": true}))"},
        Case{"qwen3_coder",
             "<tool_call>\n<function=f>\n<parameter=text>\n12\n</parameter>\n<parameter=size>1.50"
             "</parameter>\n<parameter=list>\n[1, \"a\"]\n</parameter>\n<parameter=map>\n"
             "{'a': None}\n</parameter>\n<parameter=maybe>\nnull\n</parameter>\n"
             "<parameter=either>\n7\n</parameter>\n<parameter=kind>\n1\n</parameter>\n"
             "<parameter=level>\n2\n</parameter>\n<parameter=place>\n{\"x\": 1}\n</parameter>\n"
             "<parameter=other>\n[]\n</parameter>\n</function>\n</tool_call>",
             R"(|f({"text": "12", "size": 1.50, "list": [1, "a"], "map": {"a": null}, )"
             R"("maybe": null, "either": 7, "kind": "1", "level": 2, "place": {"x": 1}, )"
             R"("other": []}))"},
        Case{"qwen3_coder",
             "<tool_call>\n<function=f>\n<parameter=text>\n\n  if (a < b) {\n    s = \"<x>\";\n"
             "  }\n\n</parameter>\n</function>\n</tool_call>",
             R"(|f({"text": "\n  if (a < b) {\n    s = \"<x>\";\n  }\n"}))"},
        Case{"qwen3_coder",
             "<tool_call>\n<function=f>\n<parameter=count>\nmany\n</parameter>\n<parameter=maybe>\n"
             "5\n</parameter>\n</function>\n</tool_call>",
             R"(|f({"count": "many", "maybe": "5"}))"},
        Case{"qwen3_coder",
             "<tool_call>\n<function=f>\n<parameter=text>\na\n<parameter=count>\n1\n</function>",
             R"(|f({"text": "a", "count": 1}))"},
        Case{"qwen3_coder", "Text.\n<function=f>\n<parameter=count>1</parameter>\n</function>\n",
             R"(Text.|f({"count": 1}))"},
        Case{"qwen3_coder", "Write <function=h> there, or <functional>.",
             "Write<function=h> there, or <functional>."},
        Case{"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=text>\ncut he",
             "|f({\"text\": \"cut he)"},
        Case{"qwen3_coder", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
             "|f({})"},
        Case{"qwen3_coder", "<tool_call>no call</tool_call>", "<tool_call>no call</tool_call>"},
        Case{"qwen3_coder", "a <tool_call>\n<functi", "a<tool_call><functi"},
        Case{"qwen3_coder", "<think>\n<function=f>\n</think>\n<tool_call><function=g></function>",
             "«<function=f>»|g({})"},
        Case{"qwen3_coder",
             "<function=f>\n<parameter=count>\n1\n</parameter>\n</function>\n</tool_call>\n"
             "<tool_call>\n<function=g>\n</function>\n</tool_call>",
             R"(|f({"count": 1})|g({}))", true}));

INSTANTIATE_TEST_SUITE_P(
    JsonLists, Answer,
    testing::Values(
        Case{"granite",
             "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
             "\"arguments\": {}}]",
             R"(|f({"a": 1})|g({}))"},
        Case{"granite", "<tool_call>[{\"arguments\": {}, \"name\": \"f\"}]", "|f({})"},
        Case{"granite", "Yes: <|tool_call|> {\"name\": \"f\", \"arguments\": {}}", "Yes:|f({})"},
        Case{"granite", "<|tool_call|>[5]", "<|tool_call|>[5]"},
        Case{"granite", "[{\"name\": \"f\", \"arguments\": {}}]", "|f({})", true},
        Case{"phi4_mini_json",
             "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<|/tool_call|>",
             R"(|f({"a": 1}))"},
        Case{
            "phi4_mini_json",
            "functools[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]",
            "|f({})|g({})"},
        Case{"phi4_mini_json", "import functools\n", "import functools\n"}));

INSTANTIATE_TEST_SUITE_P(
    Deepseek, Answer,
    testing::Values(
        Case{"deepseek_v3",
             "<think>\nHm\n</think>\n\nSo.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
             "<｜tool▁sep｜>f\n```json\n{\"a\": \"}`\"}\n```<｜tool▁call▁end｜>\n"
             "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
             "<｜tool▁calls▁end｜>",
             R"(«Hm»So.|f({"a": "}`"})|g({}))"},
        Case{"deepseek_v3",
             "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
             "1}<｜tool▁call▁end｜>"
             "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
             R"(|f({"a": 1})|g({}))"},
        Case{"deepseek_v3", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
             "|f({})"},
        Case{"deepseek_v3", "A <｜tool▁call▁begin｜>function", "A<｜tool▁call▁begin｜>function"},
        Case{"deepseek_v3", "f\n```json\n{\"a\": 1}\n```", R"(|f({"a": 1}))", true}));

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

TEST(AnswerReader, ShowsATextWithoutQuotesAsItComes) {
  AnswerReader reader({.tools = &kQwenXmlFormat, .types = argument_types()});
  AnswerPart part;
  reader.push("<tool_call><function=f><parameter=text>\nlong \"te", false, part);
  EXPECT_EQ(print(part), "|f({\"text\": \"long \\\"te)");
}

TEST(AnswerReader, ReadsALongValueInLinearTime) {
  for (const char* const name : {"text", "other"}) {
    AnswerReader reader({.tools = &kQwenXmlFormat, .types = argument_types()});
    AnswerPart part;
    reader.push("<tool_call><function=f><parameter=" + std::string(name) + ">", false, part);
    const clock_t start = std::clock();
    for (int i = 0; i < 300'000; ++i) {
      reader.push(i % 40 == 0 ? "\n" : "ab", false, part);
    }
    EXPECT_LT(std::clock() - start, 2 * CLOCKS_PER_SEC) << name;
  }
}

TEST(ChatFormat, ReadsTheTypesOfTheRequestsTools) {
  const ChatFormat format = chat_format_of("<tool_call><function=f><parameter=p>", "auto");
  ToolUse use;
  use.tools = {{.name = "f",
                .parameters = nlohmann::ordered_json::parse(
                    R"({"properties":{"n":{"type":"integer"},"s":{"type":"string"}}})")}};
  GenerateRequest request;
  const auto notation = prepare_chat(format, FakeTokenizer(), use, request);
  ASSERT_TRUE(notation.ok()) << notation.status();
  EXPECT_EQ(read(*notation, {"<tool_call><function=f><parameter=n>1</parameter><parameter=s>1"
                             "</parameter></function></tool_call>"}),
            R"(|f({"n": 1, "s": "1"}))");
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
  EXPECT_EQ(tool_format_of("<tool_call>\n<function=f>\n<parameter=p>").name, "qwen3_coder");
  EXPECT_EQ(tool_format_of("respond with <|tool_call|>, a list").name, "granite");
  EXPECT_EQ(tool_format_of("<|tool|>' + message['tools'] + '<|/tool|>").name, "phi4_mini_json");
  EXPECT_EQ(tool_format_of("{{'<｜tool▁calls▁begin｜>'}}").name, "deepseek_v3");
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

absl::StatusOr<std::optional<GrammarSpec>> grammar_of(const ToolUse& use,
                                                      const ToolFormat& format) {
  std::vector<std::string> left_out;
  return tool_grammar(use, format, left_out);
}

json tree_of(const absl::StatusOr<std::optional<GrammarSpec>>& spec) {
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() && *spec ? json::parse((*spec)->text).at("format") : json();
}

TEST(ToolGrammar, ForcesCallsOfTheNamedTools) {
  ToolUse use = two_tools(ToolUse::Choice::required);
  json tree = tree_of(grammar_of(use, kHermesFormat));
  EXPECT_EQ(tree.at("tags").size(), 2u);
  EXPECT_EQ(tree.at("stop_after_first"), false);
  EXPECT_EQ(tree.at("tags").at(1).at("begin"), R"({"name": "g", "arguments": )");
  use.only = "g";
  tree = tree_of(grammar_of(use, kMistralFormat)).at("elements").at(1);
  EXPECT_EQ(tree.at("tags").size(), 1u);
  EXPECT_EQ(tree.at("stop_after_first"), true);
}

TEST(ToolGrammar, BindsFreeTextOnlyForStrictTools) {
  ToolUse use = two_tools(ToolUse::Choice::automatic);
  EXPECT_TRUE(tree_of(grammar_of(use, kHermesFormat)).is_null());
  use.tools[0].strict = true;
  EXPECT_EQ(tree_of(grammar_of(use, kHermesFormat)).at("type"), "triggered_tags");
}

TEST(ToolGrammar, RefusesASchemaOnlyOfAStrictTool) {
  ToolUse use = two_tools(ToolUse::Choice::required);
  use.tools[0].parameters = {{"type", "object"}, {"not", {{"type", "null"}}}};
  EXPECT_FALSE(tree_of(grammar_of(use, kHermesFormat)).is_null());
  use.tools[0].strict = true;
  const absl::Status status = grammar_of(use, kHermesFormat).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("f.parameters (strict): $.not"));
}

TEST(ToolGrammar, BindsTheRestOfASchemaAndNamesWhatItDoesNot) {
  ToolUse use = two_tools(ToolUse::Choice::required);
  use.tools[0].parameters = nlohmann::ordered_json::parse(R"({"type":"object","properties":{
      "n":{"type":"integer","format":"int32","minimum":3},"s":{"not":{"const":"x"}}}})");
  std::vector<std::string> left_out;
  const json tree = tree_of(tool_grammar(use, kHermesFormat, left_out));
  EXPECT_EQ(tree.at("tags").at(0).at("content").at("json_schema"), json::parse(R"({"type":"object",
      "properties":{"n":{"type":"integer","minimum":3},"s":{}}})"));
  EXPECT_THAT(
      left_out,
      testing::ElementsAre("tools: f.parameters: $.properties.s.not is not supported in grammars"));
}

TEST(ToolGrammar, TellsThatFreeCallsOfAStrictToolAreNotBound) {
  ToolUse use = two_tools(ToolUse::Choice::automatic);
  use.tools[0].strict = true;
  std::vector<std::string> left_out;
  EXPECT_TRUE(tree_of(tool_grammar(use, kMistralFormat, left_out)).is_null());
  EXPECT_THAT(left_out, testing::ElementsAre(HasSubstr("in the notation mistral")));
}

TEST(ToolGrammar, TakesASchemaThatSaysNothingForThatOfObjects) {
  ToolUse use = two_tools(ToolUse::Choice::required);
  use.tools[0].parameters = nlohmann::ordered_json::parse(R"({"title":"F"})");
  const json tree = tree_of(grammar_of(use, kHermesFormat));
  EXPECT_EQ(tree.at("tags").at(0).at("content").at("json_schema").at("type"), "object");
  EXPECT_EQ(tree.at("tags").at(1).at("content").at("json_schema").at("type"), "object");
}

TEST(ToolGrammar, AllowsAnAnswerInJsonBesideCalls) {
  const ToolUse use = two_tools(ToolUse::Choice::automatic);
  const GrammarSpec other{GrammarSpec::Kind::json_schema, R"({"type":"integer"})",
                          "response_format"};
  std::vector<std::string> left_out;
  EXPECT_EQ(tree_of(calls_or(use, kHermesFormat, other, left_out)).at("type"), "or");
  EXPECT_FALSE(calls_or(use, kMistralFormat, other, left_out).ok())
      << "its marker is a special token";
}

}  // namespace
}  // namespace tessera
