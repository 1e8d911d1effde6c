// cache_control, in Anthropic's dialect and in OpenAI's: where it may stand, and how often.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::EndsWith;
using testing::HasSubstr;

constexpr const char* kMark = R"("cache_control":{"type":"ephemeral"})";
constexpr const char* kHour = R"("cache_control":{"type":"ephemeral","ttl":"1h"})";

class HttpMarks : public HttpFixture {
 protected:
  void SetUp() override {
    fake.engine->answer_with([](const EngineRequest&) { return "x"; });
    start();
  }

  HttpClientResponse post(const std::string& route, const std::string& fields) {
    HttpClient client(port());
    return client.post(route, "{\"max_tokens\":9," + fields + "}");
  }
  HttpClientResponse chat(const std::string& fields) {
    return post("/v1/chat/completions", fields);
  }

  // Returns: the texts that the last request keeps, the shortest first.
  std::vector<std::string> kept() {
    const EngineRequest request = fake.engine->request(fake.engine->requests() - 1);
    std::vector<std::string> texts;
    for (const KeptPrefix& one : request.kept) {
      const auto tokens = std::span(request.prompt).first(static_cast<size_t>(one.tokens));
      texts.push_back(*fake.service->prompts().detokenize(tokens));
    }
    return texts;
  }
  std::string prompt(RequestId id) {
    return *fake.service->prompts().detokenize(fake.engine->request(id).prompt);
  }
};

// Gateways such as LiteLLM send an Anthropic client's marks in OpenAI's form.
TEST_F(HttpMarks, OfPartsKeepTheChatUpToThem) {
  const auto answer = chat(std::string(R"("messages":[
      {"role":"system","content":[{"type":"text","text":"S1",)") +
                           kHour + R"(},{"type":"text","text":"S2"}]},
      {"role":"user","content":[{"type":"text","text":"q1",)" +
                           kMark + R"(},{"type":"text","text":"q2"}]}])");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(prompt(0), "<s>[system]S1\nS2[user]q1\nq2[assistant]");
  EXPECT_THAT(kept(), testing::ElementsAre("<s>[system]S1", "<s>[system]S1\nS2[user]q1"));
  EXPECT_EQ(fake.engine->request(0).kept[0].ttl, std::chrono::hours(1));
  EXPECT_EQ(fake.engine->request(0).kept[1].ttl, std::chrono::minutes(5));
}

TEST_F(HttpMarks, OfMessagesToolsAndBodiesKeepTheChatUpToThem) {
  const std::string mark = std::string(",") + kMark;
  const std::string call = R"("tool_calls":[{"id":"c","type":"function",
      "function":{"name":"f","arguments":"{}"}}])";
  const auto messages = [&](const std::string& of_system, const std::string& of_call,
                            const std::string& of_result) {
    return R"("messages":[{"role":"system","content":"S")" + of_system +
           R"(},{"role":"user","content":"q"},{"role":"assistant","content":null,)" + call +
           of_call + R"(},{"role":"tool","tool_call_id":"c","content":"r")" + of_result +
           R"(},{"role":"user","content":"u"}])";
  };
  const auto tool = [](const std::string& outside, const std::string& inside) {
    return R"("tools":[{"type":"function")" + outside + R"(,"function":{"name":"f")" + inside +
           "}}],";
  };
  const auto kept_text = [&](const std::string& fields) {
    const auto answer = chat(fields);
    EXPECT_EQ(answer.status, 200) << answer.body;
    const std::vector<std::string> texts = kept();
    return texts.size() == 1 ? texts[0] : "kept " + std::to_string(texts.size());
  };
  EXPECT_THAT(kept_text(messages(mark, "", "")), EndsWith("[system]S[user]"));
  EXPECT_THAT(kept_text(messages("", mark, "")), EndsWith("[user]q[assistant][call]f{}"));
  EXPECT_THAT(kept_text(messages("", "", mark)), EndsWith("[tool]r"));
  EXPECT_THAT(kept_text(tool(mark, "") + messages("", "", "")), EndsWith("[system]S[user]"));
  EXPECT_THAT(kept_text(tool("", mark) + messages("", "", "")), EndsWith("[system]S[user]"));
  EXPECT_THAT(kept_text(std::string(kMark) + "," + messages("", "", "")),
              EndsWith("[tool]r[user]u"));
  EXPECT_EQ(kept_text(messages("", "", "")), "kept 0");
  EXPECT_EQ(kept_text(messages(R"(,"cache_control":null)", "", "")), "kept 0");
  EXPECT_EQ(kept_text(R"("cache_control":null,)" + messages("", "", "")), "kept 0");
}

// The calls of a message follow its parts.
TEST_F(HttpMarks, OfAPartEndBeforeTheCallsOfItsMessage) {
  const auto answer = chat(std::string(R"("messages":[{"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"text","text":"a",)") +
                           kMark + R"(}],"tool_calls":[{"id":"c","type":"function",
      "function":{"name":"f","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"c","content":"r"}])");
  ASSERT_EQ(answer.status, 200) << answer.body;
  ASSERT_EQ(kept().size(), 1u);
  EXPECT_THAT(kept()[0], EndsWith("[assistant]a"));
}

TEST_F(HttpMarks, OfOtherKindsAreRefusedInBothDialects) {
  for (const char* const control :
       {R"({"type":"forever"})", R"("ephemeral")", R"({"ttl":"5m"})",
        R"({"type":"ephemeral","ttl":"2h"})", R"({"type":"ephemeral","ttl":300})"}) {
    const std::string fields =
        R"("messages":[{"role":"user","content":[{"type":"text","text":"q","cache_control":)" +
        std::string(control) + "}]}]";
    for (const char* const route : {"/v1/messages", "/v1/chat/completions"}) {
      const auto answer = post(route, fields);
      EXPECT_EQ(answer.status, 400) << route << control;
      EXPECT_THAT(answer.body, HasSubstr("messages[0].content[0].cache_control")) << control;
    }
  }
}

// A user's message of so many parts that are marked.
std::string marked_parts(int32_t parts) {
  std::string text = R"("messages":[{"role":"user","content":[)";
  for (int32_t i = 0; i < parts; ++i) {
    text += (i > 0 ? "," : "") + std::string(R"({"type":"text","text":"q",)") + kMark + "}";
  }
  return text + "]}]";
}

// Agents send more than the four that Anthropic's API allows. A later mark keeps what the earlier
// ones keep.
TEST_F(HttpMarks, MayBeMoreThanFour) {
  for (const char* const route : {"/v1/messages", "/v1/chat/completions"}) {
    const auto answer = post(route, std::string(kMark) + "," + marked_parts(9));
    EXPECT_EQ(answer.status, 200) << route << answer.body;
  }
}

// Anthropic's reference allows one in each of these places. A prompt shows none.
TEST_F(HttpMarks, MayStandInAnyBlock) {
  const std::string mark = std::string(",") + kHour;
  const std::string system = R"("system":[{"type":"text","text":"S","citations":null)" + mark +
                             R"(}],"tools":[{"name":"f","input_schema":{"type":"object"})" + mark;
  const auto talk = [](const std::string& earlier, const std::string& later) {
    return R"(}],"messages":[{"role":"user","content":[{"type":"text","text":"q")" + earlier +
           R"(}]},{"role":"assistant","content":[{"type":"tool_use","id":"t",
      "name":"f","input":{})" +
           earlier + R"(}]},{"role":"user","content":[{"type":"tool_result")" + later +
           R"(,"tool_use_id":"t","content":[{"type":"text","text":"r")" + later +
           R"(}]},{"type":"document","title":"D","source":{"type":"text",
      "media_type":"text/plain","data":"d"})" +
           later + "}]}]";
  };
  const std::string plain =
      R"("system":[{"type":"text","text":"S"}],"tools":[{"name":"f",
      "input_schema":{"type":"object"})";
  for (const std::string& fields :
       {system + talk(mark, ""), std::string(kHour) + "," + plain + talk("", mark)}) {
    const auto answer = post("/v1/messages", fields);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const std::string shown = prompt(fake.engine->requests() - 1);
    EXPECT_THAT(shown, HasSubstr("[system]S[user]q[assistant][call]f{}[tool]r[user]D\nd"));
    EXPECT_THAT(shown, testing::Not(HasSubstr("ephemeral")));
    HttpClient client(port());
    const auto counted = client.post("/v1/messages/count_tokens", "{" + fields + "}");
    ASSERT_EQ(counted.status, 200) << counted.body;
    EXPECT_EQ(json::parse(counted.body).at("input_tokens"),
              fake.engine->request(fake.engine->requests() - 1).prompt.size());
  }
}

TEST_F(HttpMarks, AreCheckedInPromptsThatAreOnlyCounted) {
  HttpClient client(port());
  EXPECT_EQ(client.post("/tokenize", "{" + marked_parts(4) + "}").status, 200);
  const std::string wrong = R"({"cache_control":{"type":"forever"},)" + marked_parts(1) + "}";
  EXPECT_EQ(HttpClient(port()).post("/tokenize", wrong).status, 400);
}

}  // namespace
}  // namespace tessera
