// Tools, calls in the history, and the variables of chat templates in OpenAI's bodies.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/base/error.h"
#include "server/openai/request.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ElementsAre;

constexpr const char* kTools = R"("tools":[{"type":"function","function":{"name":"f",
    "description":"d","parameters":{"type":"object","properties":{"b":{"type":"string"},
    "a":{"type":"integer"}}},"strict":true}},{"type":"function","function":{"name":"g"}}])";

absl::StatusOr<CompletionRequest> parse(const std::string& fields) {
  return parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
}

CompletionRequest tool_chat(const std::string& fields) {
  const auto request = parse(fields);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.value_or(CompletionRequest());
}

const Conversation& conversation_of(const CompletionRequest& request) {
  return std::get<Conversation>(request.prompts.at(0));
}

TEST(ChatTools, AreReadInTheClientsOrder) {
  const CompletionRequest request = tool_chat(kTools);
  ASSERT_EQ(request.tools.tools.size(), 2u);
  EXPECT_EQ(request.tools.tools[0].name, "f");
  EXPECT_TRUE(request.tools.tools[0].strict);
  EXPECT_EQ(request.tools.tools[0].parameters.at("properties").begin().key(), "b");
  EXPECT_TRUE(request.tools.tools[1].parameters.is_null());
  EXPECT_TRUE(request.tools.parallel);
  EXPECT_EQ(request.tools.choice, ToolUse::Choice::automatic);
  EXPECT_THAT(conversation_of(request).tools,
              ElementsAre(testing::StartsWith(
                              R"({"type":"function","function":{"name":"f","description":"d")"),
                          R"({"type":"function","function":{"name":"g"}})"));
}

TEST(ChatTools, AreChosenInEachWay) {
  const std::string tools = kTools;
  EXPECT_EQ(tool_chat(tools + R"(,"tool_choice":"auto")").tools.choice, ToolUse::Choice::automatic);
  EXPECT_EQ(tool_chat(tools + R"(,"tool_choice":"none")").tools.choice, ToolUse::Choice::none);
  EXPECT_EQ(tool_chat(tools + R"(,"tool_choice":"required")").tools.choice,
            ToolUse::Choice::required);
  const ToolUse named =
      tool_chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})").tools;
  EXPECT_EQ(named.choice, ToolUse::Choice::required);
  EXPECT_EQ(named.only, "g");
  EXPECT_FALSE(tool_chat(tools + R"(,"parallel_tool_calls":false)").tools.parallel);
}

TEST(ChatTools, StandInTheHistory) {
  const auto request = parse_chat_request(R"({"messages":[{"role":"user","content":"hi"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",
       "function":{"name":"f","arguments":"{\"a\": 1}"}}]},
      {"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"ok"}]},
      {"role":"assistant","tool_calls":[{"id":"c2","function":{"name":"g","arguments":{"b":2}}}],
       "reasoning_content":"hm"}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  const std::vector<ChatMessage>& messages = conversation_of(*request).messages;
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[1].tool_calls.at(0).arguments, "{\"a\": 1}") << "as the model wrote it";
  EXPECT_EQ(messages[2].tool_call_id, "c1");
  EXPECT_EQ(messages[2].content, "ok");
  EXPECT_EQ(messages[3].tool_calls.at(0).arguments, "{\"b\": 2}");
  EXPECT_EQ(messages[3].reasoning, "hm");
}

// Texts that are no JSON come from answers that max_tokens cut off.
TEST(ChatTools, KeepArgumentsOfAnyTextInTheHistory) {
  for (const auto& [given, kept] : std::vector<std::pair<std::string, std::string>>{
           {R"("{\"city\": \"Par")", R"({"city": "Par)"},
           {R"("[1")", "[1"},
           {R"("null")", "null"},
           {R"("")", "{}"},
           {"null", "{}"},
           {"[]", "{}"},
           {"{}", "{}"},
           {R"([ 1,{"b" :2}])", R"([1, {"b": 2}])"}}) {
    const auto request = parse_chat_request(
        R"({"messages":[{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":
        {"name":"f","arguments":)" +
        given + "}}]}]}");
    ASSERT_TRUE(request.ok()) << given << request.status();
    EXPECT_EQ(conversation_of(*request).messages.at(0).tool_calls.at(0).arguments, kept);
  }
}

TEST(ChatTools, KeepTheOrderAndTheNumbersOfArguments) {
  const auto request = parse_chat_request(R"({"messages":[{"role":"user","content":"q"},
      {"role":"assistant","tool_calls":[{"function":{"name":"g","arguments":"{}"}},
       {"function":{"arguments": {"b":1.0,"a":{"d":123456789012345678901,"c":"x, y: \"z\""}},
        "name":"f"}}]}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(conversation_of(*request).messages.at(1).tool_calls.at(1).arguments,
            R"({"b": 1.0, "a": {"d": 123456789012345678901, "c": "x, y: \"z\""}})");
}

TEST(ChatTools, TakeATextAsTheirInput) {
  const CompletionRequest request = tool_chat(R"("tools":[{"type":"custom","custom":{"name":"p",
      "description":"Edits.","format":{"type":"grammar","grammar":{"syntax":"regex",
      "definition":"[a-z]+"}}}}],"tool_choice":{"type":"custom","custom":{"name":"p"}})");
  EXPECT_TRUE(request.tools.tools.at(0).custom);
  EXPECT_EQ(request.tools.only, "p");
  EXPECT_THAT(conversation_of(request).tools.at(0),
              testing::AllOf(testing::HasSubstr("regex grammar:\\n[a-z]+"),
                             testing::HasSubstr(R"("required":["input"])")));
}

TEST(ChatTools, AreTheAllowedOnesAlone) {
  const CompletionRequest request = tool_chat(std::string(kTools) + R"(,"tool_choice":{
      "type":"allowed_tools","allowed_tools":{"mode":"required","tools":[
      {"type":"function","function":{"name":"g"}},{"type":"function","function":{"name":"x"}}]}})");
  ASSERT_EQ(request.tools.tools.size(), 1u);
  EXPECT_EQ(request.tools.tools[0].name, "g");
  EXPECT_EQ(request.tools.choice, ToolUse::Choice::required);
  EXPECT_EQ(conversation_of(request).tools.size(), 1u);
}

TEST(ChatTools, AreShownWithoutHintsOfTheClient) {
  const CompletionRequest request = tool_chat(R"("tools":[{"cache_control":{"type":"ephemeral"},
      "type":"function","function":{"name":"f","defer_loading":false}}])");
  EXPECT_THAT(conversation_of(request).tools,
              ElementsAre(R"({"type":"function","function":{"name":"f"}})"));
}

TEST(ChatTools, AreLeftOutWithAWarningIfTheServerWouldRunThem) {
  const CompletionRequest request = tool_chat(R"("tools":[{"type":"web_search\n"},
      {"type":"function","function":{"name":"f"}}],"tool_choice":"required",
      "web_search_options":{})");
  EXPECT_EQ(request.tools.tools.size(), 1u);
  EXPECT_THAT(request.warnings,
              ElementsAre("tools[0] is left out: this server runs no tool of the type "
                          "'web_search'n'",
                          "web_search_options is left out: this server searches nothing"));
}

// The published API calls them hints, or keeps them in its own records.
TEST(ChatFields, AreAcceptedIfTheyChangeNoAnswer) {
  for (const char* const fields :
       {R"("store":true)", R"("metadata":{"a":"b"})", R"("service_tier":"priority")",
        R"("verbosity":"low")", R"("prediction":{"type":"content","content":"x"})", R"("user":"u")",
        R"("safety_identifier":"s")"}) {
    EXPECT_TRUE(parse(fields).ok()) << fields << parse(fields).status();
  }
  for (const char* const fields :
       {R"("store":"yes")", R"("metadata":"a")", R"("service_tier":1)", R"("verbosity":"loud")",
        R"("prediction":"x")", R"("audio":{"voice":"a"})", R"("modalities":["audio"])"}) {
    EXPECT_EQ(http_status(parse(fields).status()), 400) << fields;
  }
}

TEST(ChatFields, MayStandInTheHistory) {
  const auto request = parse_chat_request(R"({"messages":[
      {"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]},
      {"role":"assistant","content":null,"refusal":"No."},
      {"role":"assistant","content":[{"type":"refusal","refusal":"Never."}],"annotations":[{}]},
      {"role":"assistant","content":null,"reasoning_content":"Hm.","thinking_blocks":[]}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  const std::vector<ChatMessage>& messages = conversation_of(*request).messages;
  EXPECT_EQ(messages.at(0).content, "a");
  EXPECT_EQ(messages.at(1).content, "No.");
  EXPECT_EQ(messages.at(2).content, "Never.");
  EXPECT_EQ(messages.at(3).reasoning, "Hm.");
}

TEST(ChatVariables, ReachTheTemplate) {
  EXPECT_EQ(conversation_of(tool_chat(R"("enable_thinking":false)")).variables,
            R"({"enable_thinking":false})");
  EXPECT_EQ(conversation_of(tool_chat(R"("thinking":{"type":"enabled"})")).variables,
            R"({"enable_thinking":true})");
  EXPECT_EQ(conversation_of(tool_chat(R"("enable_thinking":true,"chat_template_kwargs":
                                         {"enable_thinking":false})"))
                .variables,
            R"({"enable_thinking":false})")
      << "the template's own name wins";
  EXPECT_EQ(conversation_of(tool_chat(R"("chat_template_kwargs":{"z":1,"a":[true]})")).variables,
            R"({"z":1,"a":[true]})");
  EXPECT_EQ(conversation_of(tool_chat(R"("reasoning_effort":"none")")).variables,
            R"({"reasoning_effort":"none","enable_thinking":false})");
  EXPECT_EQ(conversation_of(tool_chat(R"("n":1)")).variables, "");
  EXPECT_FALSE(tool_chat(R"("include_reasoning":false)").reasoning);
}

TEST(ChatContinuation, EndsThePromptInsideTheLastMessage) {
  const auto request = parse_chat_request(R"({"messages":[{"role":"user","content":"hi"},
      {"role":"assistant","content":"I"}],"continue_final_message":true})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(conversation_of(*request).continue_final);
  EXPECT_FALSE(request->each.prompt_options.add_generation_prompt);
}

struct Bad {
  const char* fields;
  const char* param;
};
class RefusedTools : public testing::TestWithParam<Bad> {};

TEST_P(RefusedTools, NamesTheField) {
  const absl::Status status = parse(GetParam().fields).status();
  ASSERT_EQ(http_status(status), 400) << GetParam().fields;
  EXPECT_EQ(json::parse(print_error(status)).at("error").at("param"), GetParam().param);
}

INSTANTIATE_TEST_SUITE_P(
    Tools, RefusedTools,
    testing::Values(
        Bad{R"("tools":5)", "tools"}, Bad{R"("tools":[5])", "tools[0]"},
        Bad{R"("tools":[{"type":5}])", "tools[0]"},
        Bad{R"("tools":[{"type":"web_search"}],"tool_choice":"required")", "tool_choice"},
        Bad{R"("tools":[{"type":"function"}])", "tools[0].function"},
        Bad{R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name"},
        Bad{R"("tools":[{"type":"function","function":{"name":"a","parameters":5}}])",
            "tools[0].function.parameters"},
        Bad{R"("tool_choice":"required")", "tool_choice"},
        Bad{R"("tool_choice":"some")", "tool_choice"},
        Bad{R"("tool_choice":{"type":"function","function":{"name":"h"}},"tools":[])",
            "tool_choice"},
        Bad{R"("chat_template_kwargs":5)", "chat_template_kwargs"},
        Bad{R"("reasoning_effort":"great")", "reasoning_effort"},
        Bad{R"("continue_final_message":true)", "continue_final_message"}));

struct BadMessage {
  const char* message;
  const char* param;
};
class RefusedHistory : public testing::TestWithParam<BadMessage> {};

TEST_P(RefusedHistory, NamesThePlace) {
  const absl::Status status =
      parse_chat_request(std::string("{\"messages\":[") + GetParam().message + "]}").status();
  ASSERT_EQ(http_status(status), 400) << GetParam().message;
  EXPECT_EQ(json::parse(print_error(status)).at("error").at("param"), GetParam().param);
}

INSTANTIATE_TEST_SUITE_P(
    Messages, RefusedHistory,
    testing::Values(
        BadMessage{R"({"role":"user","content":"x","tool_calls":[{}]})", "messages[0].tool_calls"},
        BadMessage{R"({"role":"assistant","tool_calls":[{"function":{"name":""}}]})",
                   "messages[0].tool_calls[0].function.name"},
        BadMessage{R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]})",
                   "messages[0].tool_calls[0].function.arguments"},
        BadMessage{R"({"role":"assistant","tool_calls":[{"type":"custom","custom":{"name":"f"}}]})",
                   "messages[0].tool_calls[0].custom.input"},
        BadMessage{R"({"role":"user","content":[{"type":"text","text":"x","colour":1}]})",
                   "messages[0].content[0].colour"},
        BadMessage{R"({"role":"assistant","tool_calls":[{"id":5,"function":{"name":"f"}}]})",
                   "messages[0].tool_calls[0].id"},
        BadMessage{R"({"role":"tool","tool_call_id":5,"content":"x"})",
                   "messages[0].tool_call_id"}));

}  // namespace
}  // namespace tessera
