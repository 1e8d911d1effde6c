#include "eval/tasks/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "eval/score/item_scores.h"
#include "eval/tasks/calls.h"
#include "eval/tasks/profile.h"
#include "eval/tasks/prompt_text.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

TEST(Calls, AreReadInEachNotationOfJson) {
  const TextCall call{"find_order", R"({"number":7})"};
  for (const char* text : {
           R"(<tool_call>
{"name": "find_order", "arguments": {"number": 7}}
</tool_call>)",
           R"([TOOL_CALLS][{"name": "find_order", "arguments": {"number": 7}}])",
           R"({"name": "find_order", "parameters": {"number": 7.0}})",
           R"(I call {it}: {"arguments": "{\"number\": 7}", "name": "find_order"} {"number": 7})",
           R"({"type": "function", "call": {"name": "find_order", "arguments": {"number": 7}}})",
       }) {
    EXPECT_THAT(calls_in(text), testing::ElementsAre(call)) << text;
  }
}

TEST(Calls, AreNoOtherObjects) {
  for (const char* text :
       {"", "find_order(7)", R"({"name": "find_order"})", R"({"name": 3, "arguments": {}})",
        R"({"name": "a", "arguments": [1]})", R"({"name": "a", "arguments": "{"})",
        R"({"name": "a", "arguments": {"number": 7})", R"("{\"name\"}")", "{{{{", "\\{\"\\"}) {
    EXPECT_THAT(calls_in(text), testing::IsEmpty()) << text;
  }
}

TEST(Calls, AreTheSameInAnyOrderOfCallsAndKeys) {
  const std::string a = R"({"name": "f", "arguments": {"x": 1, "y": "ü"}})";
  const std::string swapped = R"({"arguments": {"y": "\u00fc", "x": 1.0}, "name": "f"})";
  const std::string b = R"({"name": "g", "arguments": {}})";
  EXPECT_TRUE(have_same_calls(a + b, b + swapped));
  EXPECT_TRUE(have_same_calls("no call", ""));
  EXPECT_FALSE(have_same_calls(a, a + a)) << "one call too many";
  EXPECT_FALSE(have_same_calls(a + b, a)) << "one call too few";
  EXPECT_FALSE(have_same_calls(a, R"({"name": "g", "arguments": {"x": 1, "y": "ü"}})"));
  EXPECT_FALSE(have_same_calls(a, R"({"name": "f", "arguments": {"x": "1", "y": "ü"}})"));
  EXPECT_FALSE(have_same_calls(a, R"({"name": "f", "arguments": {"x": 1, "y": "u"}})"));
  EXPECT_FALSE(have_same_calls(a, R"({"name": "f", "arguments": {"x": 1}})"));
}

TEST(Calls, AreRightAnswersOfAnItem) {
  Item item;
  item.trials.push_back({.prompt = {1}, .generate = 8});
  item.answer = R"([{"name": "f", "arguments": {"x": [1, {"y": 2}]}}])";
  TrialResult result;
  result.text = R"(<tool_call>{"name": "f", "arguments": {"x": [1, {"y": 2}]}}</tool_call>)";
  EXPECT_EQ(accuracy(Scoring::calls, item, {result}).value(), 1);
  result.text = R"(<tool_call>{"name": "f", "arguments": {"x": [{"y": 2}, 1]}}</tool_call>)";
  EXPECT_EQ(accuracy(Scoring::calls, item, {result}).value(), 0);
}

class ToolCalls : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = Tokenizer::load(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                  "models/checkpoints/tessera-tiny");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
    chat_ = ChatTemplate::parse(*builtin_chat_template("chatml")).value();
  }

  static Task make(int32_t length, int32_t cases, uint64_t seed = 1) {
    auto made = make_tool_calls({{length}, cases}, *chat_, *tokenizer_, Material(seed));
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : Task{};
  }
  static std::string prompt(const Item& item) {
    return decode_continuation(*tokenizer_, item.trials[0].prompt);
  }
  // Returns: the part behind the log.
  static std::string asked(const Item& item) {
    const std::string text = prompt(item);
    return text.substr(text.rfind("I have read the log."));
  }

  inline static std::unique_ptr<Tokenizer> tokenizer_;
  inline static std::unique_ptr<ChatTemplate> chat_;
};

constexpr int32_t kRoomy = 4096;  // the tokenizer of a tiny model has many tokens for a text

TEST_F(ToolCalls, FillChatsWithALogToTheirLength) {
  for (const int32_t length : {kRoomy, 2 * kRoomy}) {
    for (const Item& item : make(length, 12).items) {
      const auto tokens = static_cast<int32_t>(item.trials[0].prompt.size());
      EXPECT_LE(tokens, length) << item.id;
      EXPECT_GT(tokens, length - 200) << item.id;
      EXPECT_GT(item.trials[0].generate, 48);
      EXPECT_THAT(prompt(item), HasSubstr("customer"));
    }
  }
}

TEST_F(ToolCalls, AreOfSixKindsInTurn) {
  std::map<std::string, int> kinds;
  for (const Item& item : make(kRoomy, 18).items) {
    ++kinds[item.id.substr(0, item.id.find(' '))];
  }
  EXPECT_EQ(kinds, (std::map<std::string, int>{{"single", 3},
                                               {"parallel", 3},
                                               {"nested", 3},
                                               {"enum", 3},
                                               {"unicode", 3},
                                               {"turns", 3}}));
}

// Every value of the right calls stands in the last message, or in one line of the log.
TEST_F(ToolCalls, AskForEachValueOfTheRightCalls) {
  for (const Item& item : make(kRoomy, 60).items) {
    SCOPED_TRACE(item.id + prompt(item));
    const bool in_log = item.id.starts_with("turns");
    const json calls = json::parse(item.answer);
    ASSERT_FALSE(calls.empty());
    EXPECT_EQ(calls.size() > 1, item.id.starts_with("parallel"));
    for (const json& call : calls) {
      const json arguments = call["arguments"].flatten();
      for (const auto& [place, value] : arguments.items()) {
        const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
        if (!in_log) {
          EXPECT_THAT(asked(item), HasSubstr(text)) << place;
          continue;
        }
        EXPECT_THAT(asked(item), Not(HasSubstr(text)));
        const std::string all = prompt(item);
        const std::string begin = "order " + text + ": customer ";
        const size_t line = all.find(begin);
        ASSERT_NE(line, all.npos);
        const size_t name = line + begin.size();
        const std::string customer = all.substr(name, all.find(',', name) - name);
        EXPECT_THAT(asked(item), HasSubstr(" " + customer + " "));
        EXPECT_EQ(all.find("customer " + customer + ",", name), all.npos) << "one line has it";
        EXPECT_EQ(all.find("customer " + customer + ","), line + begin.size() - 9);
      }
    }
  }
}

TEST_F(ToolCalls, RepeatThemselvesForTheSameSeed) {
  const Task first = make(kRoomy, 12), again = make(kRoomy, 12), other = make(kRoomy, 12, 2);
  for (size_t i = 0; i < first.items.size(); ++i) {
    EXPECT_EQ(first.items[i].trials[0].prompt, again.items[i].trials[0].prompt);
    EXPECT_EQ(first.items[i].answer, again.items[i].answer);
    EXPECT_NE(first.items[i].trials[0].prompt, other.items[i].trials[0].prompt);
  }
}

TEST_F(ToolCalls, HaveDistinctPromptsInTwoHundredChats) {
  std::set<std::vector<int32_t>> prompts;
  for (const int32_t length : {kRoomy, kRoomy + 512, kRoomy + 1024, kRoomy + 1536}) {
    for (const Item& item : make(length, 50).items) prompts.insert(item.trials[0].prompt);
  }
  EXPECT_EQ(prompts.size(), 200u);
}

TEST_F(ToolCalls, AreRefusedInNotationsThatAreNotScored) {
  const auto pythonic = ChatTemplate::parse(
      "{% for m in messages %}{% if m.tool_calls %}[{{ m.tool_calls[0].function.name }}("
      "{% for k, v in m.tool_calls[0].function.arguments.items() %}{{ k }}='{{ v }}'{% endfor %})]"
      "{% else %}{{ m.content }}{% endif %}"
      "{% endfor %}{% if tools %}{{ tools }}{% endif %}");
  ASSERT_TRUE(pythonic.ok()) << pythonic.status();
  const auto made = make_tool_calls({{kRoomy}, 6}, **pythonic, *tokenizer_, Material(1));
  EXPECT_EQ(made.status().code(), absl::StatusCode::kUnimplemented) << made.status();
}

TEST_F(ToolCalls, AreRefusedWhereNoLogFits) {
  const auto made = make_tool_calls({{256}, 6}, *chat_, *tokenizer_, Material(1));
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(made.status().message()),
              AllOf(HasSubstr("more than 256"), HasSubstr("--lengths")));
}

TEST_F(ToolCalls, NeedTheModelsChatTemplate) {
  TemporaryDirectory folder;
  const auto none = make_tasks({.tasks = "tools", .model = folder.path()}, *tokenizer_, 8192);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("has no chat template"));
  write_file(folder / "chat_template.jinja", std::string(*builtin_chat_template("chatml")));
  const auto made =
      make_tasks({.tasks = "tools", .model = folder.path(), .lengths = {kRoomy}, .samples = 6},
                 *tokenizer_, 8192);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->front().items.size(), 6u);
}

}  // namespace
}  // namespace tessera
