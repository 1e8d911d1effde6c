// Chats whose answers call tools, over a fake engine that writes a given text.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";

class HttpTools : public HttpFixture {
 protected:
  json post(const std::string& fields) {
    HttpClient client(port());
    last = client.post("/v1/chat/completions",
                       R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
    return last.body.starts_with("data:") ? json() : json::parse(last.body);
  }

  void answer(const std::string& text) {
    fake.engine->answer_with([text](const EngineRequest&) { return text; });
    start();
  }

  std::string prompt(RequestId id) {
    return *fake.service->prompts().detokenize(fake.engine->request(id).prompt);
  }

  HttpClientResponse last;
};

TEST_F(HttpTools, AnswersWithCalls) {
  answer("Well.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>");
  const json choice = post(kTools).at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  const json& message = choice.at("message");
  EXPECT_EQ(message.at("content"), "Well.");
  const json& call = message.at("tool_calls").at(0);
  EXPECT_EQ(call.at("type"), "function");
  EXPECT_THAT(call.at("id").get<std::string>(), testing::StartsWith("call_"));
  EXPECT_EQ(call.at("function"), json({{"name", "f"}, {"arguments", "{\"a\": 1}"}}));
  EXPECT_EQ(post(R"("n":1)").at("choices").at(0).at("finish_reason"), "stop")
      << "without tools the same text is content";
}

TEST_F(HttpTools, StreamsCallsInParts) {
  answer("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>");
  post(std::string(kTools) + R"(,"stream":true)");
  EXPECT_THAT(last.body, HasSubstr(R"("function":{"name":"f","arguments":""}}])"));
  EXPECT_THAT(last.body, HasSubstr(R"({"tool_calls":[{"index":0,"function":{"arguments":"{"}}]})"));
  EXPECT_THAT(last.body, HasSubstr(R"("finish_reason":"tool_calls")"));
}

TEST_F(HttpTools, ShowsTextThatIsNoCallAsContent) {
  answer("{\"name\": \"f\"");
  const json choice = post(kTools).at("choices").at(0);
  EXPECT_EQ(choice.at("message"), json({{"role", "assistant"}, {"content", "{\"name\": \"f\""}}));
  EXPECT_EQ(choice.at("finish_reason"), "stop");
}

TEST_F(HttpTools, ForcesACallByAGrammarAndBeginsIt) {
  answer("{\"name\": \"f\", \"arguments\": {}}\n</tool_call>");
  const json choice =
      post(std::string(kTools) + R"(,"tool_choice":"required")").at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("content"), nullptr);
  EXPECT_EQ(choice.at("message").at("tool_calls").at(0).at("function").at("name"), "f");
  EXPECT_NE(fake.engine->request(0).grammar, nullptr);
  EXPECT_THAT(prompt(0), testing::EndsWith("[assistant]<tool_call>\n"));
}

TEST_F(HttpTools, TellTheClientThatASchemaBindsLessThanItSays) {
  answer("x");
  post(R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f",
      "parameters":{"type":"object","properties":{"s":{"not":{"const":"x"}}}}}}])");
  EXPECT_EQ(last.status, 200) << last.body;
  EXPECT_THAT(last.headers.at("warning"),
              HasSubstr("f.parameters: $.properties.s.not is not supported in grammars"));
}

TEST_F(HttpTools, StopsAfterOneCallWithoutParallelCalls) {
  answer("<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"f\"}</tool_call>");
  const json choice =
      post(std::string(kTools) + R"(,"parallel_tool_calls":false)").at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("tool_calls").size(), 1u);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_TRUE(fake.engine->wait_for_cancel(0)) << "the engine does not go on";
}

TEST_F(HttpTools, LeavesCallsAloneWhereNoneAreWanted) {
  answer("<tool_call>{\"name\":\"f\"}</tool_call>");
  const json choice = post(std::string(kTools) + R"(,"tool_choice":"none")").at("choices").at(0);
  EXPECT_FALSE(choice.at("message").contains("tool_calls"));
}

TEST_F(HttpTools, RefusesARequiredCallBesideAnotherGrammar) {
  answer("");
  for (const char* const grammar :
       {R"("guided_regex":"[a-z]+")",
        R"("response_format":{"type":"structural_tag","format":{"type":"any_text"}})"}) {
    const json body = post(std::string(kTools) + R"(,"tool_choice":"required",)" + grammar);
    EXPECT_EQ(last.status, 400) << grammar;
    EXPECT_EQ(body.at("error").at("param"), "tool_choice") << grammar;
  }
}

TEST_F(HttpTools, ForcesACallWhateverFormatATextWouldHave) {
  answer("{\"name\": \"f\", \"arguments\": {}}\n</tool_call>");
  const std::string forced = std::string(kTools) + R"(,"tool_choice":"required")";
  post(forced + R"(,"response_format":{"type":"json_object"})");
  EXPECT_EQ(last.status, 200) << last.body;
  post(forced);
  EXPECT_EQ(fake.engine->request(0).grammar, fake.engine->request(1).grammar);
  EXPECT_EQ(prompt(0), prompt(1));
}

TEST_F(HttpTools, SeparatesThoughts) {
  answer("<think>\nHm.\n</think>\n\nYes.");
  json message = post(R"("n":1)").at("choices").at(0).at("message");
  EXPECT_EQ(message,
            json({{"role", "assistant"}, {"content", "Yes."}, {"reasoning_content", "Hm."}}));
  message = post(R"("include_reasoning":false)").at("choices").at(0).at("message");
  EXPECT_EQ(message, json({{"role", "assistant"}, {"content", "Yes."}}));
  post(R"("stream":true)");
  EXPECT_THAT(last.body, HasSubstr(R"("delta":{"role":"assistant","reasoning_content":"H"})"));
}

constexpr const char* kFunctions =
    R"("functions":[{"name":"f","description":"d","parameters":{"type":"object","properties":{}}}])";

// OpenAI's older form, which some frameworks still send.
TEST_F(HttpTools, AnswersFunctionsInTheirOwnForm) {
  answer("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>");
  const json choice = post(kFunctions).at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "function_call");
  EXPECT_EQ(choice.at("message"),
            json({{"role", "assistant"},
                  {"content", nullptr},
                  {"function_call", {{"name", "f"}, {"arguments", "{\"a\": 1}"}}}}));
  EXPECT_EQ(post(std::string(kFunctions) + R"(,"function_call":"none")")
                .at("choices")
                .at(0)
                .at("finish_reason"),
            "stop");
  post(std::string(kFunctions) + R"(,"stream":true)");
  std::string name;
  std::string arguments;
  std::string reason;
  for (const std::string& event : events_of(last.body)) {
    if (event != "[DONE]") {
      const json part = json::parse(event).at("choices").at(0);
      const json call = part.at("delta").value("function_call", json::object());
      name += call.value("name", "");
      arguments += call.value("arguments", "");
      if (!part.at("finish_reason").is_null()) {
        reason = part.at("finish_reason").get<std::string>();
      }
      EXPECT_FALSE(part.at("delta").contains("tool_calls"));
    }
  }
  EXPECT_EQ(name, "f");
  EXPECT_EQ(arguments, "{\"a\": 1}");
  EXPECT_EQ(reason, "function_call");
}

TEST_F(HttpTools, AForcedFunctionIsAForcedCall) {
  answer("x");
  const auto prompt_of = [&](const std::string& fields) {
    post(fields);
    EXPECT_EQ(last.status, 200) << last.body;
    return prompt(fake.engine->requests() - 1);
  };
  EXPECT_EQ(prompt_of(R"("functions":[{"name":"f","parameters":{"type":"object"}}],
                          "function_call":{"name":"f"})"),
            prompt_of(std::string(kTools) +
                      R"(,"tool_choice":{"type":"function","function":{"name":"f"}})"));
  EXPECT_NE(fake.engine->request(0).grammar, nullptr);
}

TEST_F(HttpTools, HistoriesOfFunctionsAreHistoriesOfTools) {
  answer("x");
  HttpClient client(port());
  const auto prompt_of = [&](const std::string& messages) {
    const auto response = client.post(
        "/v1/chat/completions", R"({"messages":[{"role":"user","content":"q"},)" + messages + "]}");
    EXPECT_EQ(response.status, 200) << response.body;
    return prompt(fake.engine->requests() - 1);
  };
  EXPECT_EQ(prompt_of(R"({"role":"assistant","content":null,"function_call":
                            {"name":"f","arguments":"{\"a\":1}"}},
                         {"role":"function","name":"f","content":"r"})"),
            prompt_of(R"({"role":"assistant","tool_calls":[{"id":"call00001","type":"function",
                            "function":{"name":"f","arguments":"{\"a\":1}"}}]},
                         {"role":"tool","name":"f","tool_call_id":"call00001","content":"r"})"));
  EXPECT_EQ(prompt_of(R"({"role":"assistant","content":null,"function_call":
                            {"name":"f","arguments":"{}"}})"),
            prompt_of(R"({"role":"assistant","content":null,"function_call":
                            {"arguments":"{}","name":"f"}})"));
  EXPECT_EQ(prompt_of(R"({"role":"assistant","content":"c","function_call":null})"),
            prompt_of(R"({"role":"assistant","content":"c"})"));
}

TEST_F(HttpTools, WrongFunctionsAreRefusedByTheirNames) {
  start();
  for (const auto& [fields, param] : std::vector<std::pair<std::string, std::string>>{
           {R"("functions":{})", "functions"},
           {R"("functions":[{}])", "functions[0].name"},
           {R"("functions":[{"name":"f","parameters":1}])", "functions[0].parameters"},
           {std::string(kFunctions) + R"(,"function_call":"any")", "function_call"},
           {std::string(kFunctions) + R"(,"function_call":{"name":"g"})", "function_call"},
           {R"("function_call":{"name":"f"})", "function_call"},
           {std::string(kFunctions) + "," + kTools, "functions"},
           {std::string(kFunctions) + R"(,"tool_choice":"auto")", "functions"}}) {
    const json error = post(fields).at("error");
    EXPECT_EQ(last.status, 400) << fields;
    EXPECT_EQ(error.at("param"), param) << error;
  }
  EXPECT_EQ(post(R"("functions":[],"function_call":"none","max_tokens":1,"echo":true)")
                .at("error")
                .at("param"),
            "echo")
      << "nothing is asked for";
}

}  // namespace
}  // namespace tessera
