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
    return *fake.service->detokenize(fake.engine->request(id).prompt);
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

}  // namespace
}  // namespace tessera
