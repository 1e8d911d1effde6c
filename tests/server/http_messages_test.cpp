// Anthropic's dialect: /v1/messages and /v1/messages/count_tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class HttpMessages : public HttpFixture {
 protected:
  void answer(const std::string& text) {
    fake.engine->answer_with([text](const EngineRequest&) { return text; });
    start();
  }

  json post(const std::string& fields, const std::string& route = "") {
    HttpClient client(port());
    last = client.post("/v1/messages" + route, "{" + fields + "}");
    return last.body.starts_with("event:") ? json() : json::parse(last.body);
  }

  // The types of the events of a stream.
  std::vector<std::string> events() const {
    std::vector<std::string> types;
    for (size_t at = 0; (at = last.body.find("event: ", at)) != std::string::npos; ++at) {
      types.push_back(last.body.substr(at + 7, last.body.find('\n', at) - at - 7));
    }
    return types;
  }

  std::string prompt(RequestId id) {
    return *fake.service->detokenize(fake.engine->request(id).prompt);
  }

  HttpClientResponse last;
};

constexpr const char* kHello = R"("max_tokens":99,"messages":[{"role":"user","content":"hi"}])";
constexpr const char* kTool =
    R"(,"tools":[{"name":"f","input_schema":{"type":"object","properties":{}}}])";

TEST_F(HttpMessages, AnswerWithBlocks) {
  answer("<think>Hm.</think>Well.<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>");
  const json body = post(std::string(kHello) + kTool);
  EXPECT_EQ(body.at("type"), "message");
  EXPECT_EQ(body.at("stop_reason"), "tool_use");
  const json& content = body.at("content");
  ASSERT_EQ(content.size(), 3u) << body;
  EXPECT_EQ(content[0].at("thinking"), "Hm.");
  EXPECT_EQ(content[1], json({{"type", "text"}, {"text", "Well."}}));
  EXPECT_EQ(content[2].at("name"), "f");
  EXPECT_EQ(content[2].at("input"), json({{"a", 1}}));
}

TEST_F(HttpMessages, StreamTheSameInEvents) {
  answer("A<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>");
  post(std::string(kHello) + kTool + R"(,"stream":true)");
  std::vector<std::string> types = events();
  types.erase(std::unique(types.begin(), types.end()), types.end());
  EXPECT_THAT(types, ElementsAre("message_start", "content_block_start", "content_block_delta",
                                 "content_block_stop", "content_block_start", "content_block_delta",
                                 "content_block_stop", "message_delta", "message_stop"));
  EXPECT_THAT(last.body, HasSubstr(R"("delta":{"stop_reason":"tool_use","stop_sequence":null})"));
}

TEST_F(HttpMessages, NameTheStopSequence) {
  answer("one two three");
  const json body = post(std::string(kHello) + R"(,"stop_sequences":["two"])");
  EXPECT_EQ(body.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(body.at("stop_sequence"), "two");
  EXPECT_EQ(body.at("content").at(0).at("text"), "one ");
}

TEST_F(HttpMessages, BecomeTheSameConversationAsOtherDialects) {
  answer("x");
  post(R"("max_tokens":9,"system":[{"type":"text","text":"S"}],"messages":[
      {"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"text","text":"a"}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r"},
                                {"type":"text","text":"u"}]}])");
  ASSERT_EQ(last.status, 200) << last.body;
  EXPECT_EQ(prompt(0), "<s>[system]S[user]q[assistant]a[tool]r[user]u[assistant]");
}

TEST_F(HttpMessages, AreCounted) {
  start();
  EXPECT_EQ(post(R"("messages":[{"role":"user","content":"hi"}])", "/count_tokens"),
            json({{"input_tokens", std::string("s[user]hi[assistant]").size()}}))
      << "<s> is one token";
}

TEST_F(HttpMessages, AreRefusedInAnthropicsShape) {
  start();
  for (const auto& [fields, place] : std::vector<std::pair<std::string, std::string>>{
           {R"("messages":[{"role":"user","content":"hi"}])", "max_tokens"},
           {R"("max_tokens":1,"messages":[])", "messages"},
           {R"("max_tokens":1,"messages":[{"role":"system","content":"x"}])", "messages[0].role"},
           {R"("max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}])",
            "messages[0].content[0]"},
           {std::string(kHello) + R"(,"tools":[{"type":"web_search","name":"f"}])", "tools[0]"},
           {std::string(kHello) + R"(,"tool_choice":{"type":"any"})", "tool_choice"},
           {std::string(kHello) + R"(,"thinking":{"type":"much"})", "thinking.type"},
           {std::string(kHello) + R"(,"output_config":{"format":{"type":"xml"}})",
            "output_config.format"},
           {std::string(kHello) + R"(,"unheard_of":1)", "unheard_of"}}) {
    const json body = post(fields);
    EXPECT_EQ(last.status, 400) << fields;
    EXPECT_EQ(body.at("type"), "error");
    EXPECT_EQ(body.at("error").at("type"), "invalid_request_error");
    EXPECT_THAT(body.at("error").at("message").get<std::string>(), HasSubstr(place));
  }
}

}  // namespace
}  // namespace tessera
