// Anthropic's dialect: /v1/messages and /v1/messages/count_tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/anthropic/messages_printer.h"
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
    return *fake.service->prompts().detokenize(fake.engine->request(id).prompt);
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

// A parsed number of more than 64 bits would be rounded, and 1.10 would become 1.1.
TEST_F(HttpMessages, HaveTheInputOfACallAsTheModelWroteIt) {
  const std::string input = R"({"z": 123456789012345678901234567890, "a": [1.10, -0, {"b": 1E2}],)"
                            R"( "n": 18446744073709551617, "s": "caf\u00e9"})";
  answer("<tool_call>{\"name\":\"f\",\"arguments\":" + input + "}</tool_call>");
  post(R"("max_tokens":999,"messages":[{"role":"user","content":"hi"}])" + std::string(kTool));
  EXPECT_THAT(last.body, HasSubstr(R"("name":"f","input":)" + input + R"(}],"stop_reason":)"));
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

// A token may end a call's arguments and begin the text behind it.
TEST(MessagesPrinter, EndsACallBeforeTheTextThatFollowsItInOnePart) {
  const auto printer = make_messages_printer("m");
  printer->begin({});
  printer->part({.calls = {{.id = "c", .name = "f", .arguments = "{"}}}, {});
  const std::string events = printer->part({.text = "bye", .calls = {{.arguments = "}"}}}, {});
  const std::size_t arguments = events.find("input_json_delta");
  ASSERT_NE(arguments, std::string::npos);
  EXPECT_LT(arguments, events.find("content_block_stop"));
  EXPECT_LT(events.find("content_block_stop"), events.find("bye"));
  EXPECT_THAT(events, HasSubstr(R"("index":1,"delta":{"type":"text_delta","text":"bye")"));
}

TEST_F(HttpMessages, AreRefusedIfAllTheirBlocksAreLeftOut) {
  start();
  for (const char* block : {R"({"type":"mcp_tool_use"})", R"({"type":"redacted_thinking"})"}) {
    for (const char* route : {"", "/count_tokens"}) {
      const json body = post(
          R"("max_tokens":9,"messages":[{"role":"user","content":[)" + std::string(block) + "]}]",
          route);
      EXPECT_EQ(last.status, 400) << block << route;
      EXPECT_THAT(body.at("error").at("message"), HasSubstr("messages")) << block << route;
    }
  }
}

TEST_F(HttpMessages, SendPingsAfterTheFirstEventOfALongPrompt) {
  start({.ping_interval = std::chrono::milliseconds(20)});
  HttpClient client(port());
  client.send(print_post("/v1/messages", "{" + std::string(kHello) + R"(,"stream":true})"));
  ASSERT_TRUE(client.read_until(R"(data: {"type":"ping"})"));
  fake.engine->emit(0, "x");
  fake.engine->finish(0, FinishReason::stop);
  last = client.read_response();
  std::vector<std::string> types = events();
  types.erase(std::unique(types.begin(), types.end()), types.end());
  EXPECT_THAT(types,
              ElementsAre("message_start", "ping", "content_block_start", "content_block_delta",
                          "content_block_stop", "message_delta", "message_stop"));
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

// The tokens of the fake are bytes, and "<s>" is one.
TEST_F(HttpMessages, KeepThePromptUpToTheirMarks) {
  answer("x");
  const std::string hour = R"(,"cache_control":{"type":"ephemeral","ttl":"1h"})";
  const std::string minutes = R"(,"cache_control":{"type":"ephemeral"})";
  post(R"("max_tokens":9,"system":[{"type":"text","text":"S1")" + hour +
       R"(},{"type":"text","text":"S2"}],"messages":[
       {"role":"user","content":[{"type":"text","text":"q1")" +
       minutes + R"(},{"type":"text","text":"q2"}]}])");
  ASSERT_EQ(last.status, 200) << last.body;
  EXPECT_EQ(prompt(0), "<s>[system]S1\nS2[user]q1\nq2[assistant]");
  const auto kept = fake.engine->request(0).kept;
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].ttl, std::chrono::hours(1));
  EXPECT_EQ(kept[0].tokens, 1 + std::ssize(std::string("[system]S1")));
  EXPECT_EQ(kept[1].ttl, std::chrono::minutes(5));
  EXPECT_EQ(kept[1].tokens, 1 + std::ssize(std::string("[system]S1\nS2[user]q1")));
}

TEST_F(HttpMessages, KeepToolsCallsResultsAndWholePrompts) {
  answer("x");
  const std::string mark = R"("cache_control":{"type":"ephemeral"})";
  const std::string tools =
      R"("max_tokens":9,"tools":[{"name":"f","input_schema":{"type":"object"},)" + mark + "}],";
  const std::string call = R"({"type":"tool_use","id":"t","name":"f","input":{})";
  const std::string result = R"({"type":"tool_result","tool_use_id":"t","content":[
      {"type":"text","text":"r")";
  const auto talk = [&](const std::string& of_call, const std::string& of_result) {
    return R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":[)" + call +
           of_call + R"(}]},{"role":"user","content":[)" + result + of_result +
           R"(}]},{"type":"text","text":"u"}]}])";
  };
  RequestId id = 0;
  const auto kept_text = [&](const std::string& fields) {
    post(fields);
    EXPECT_EQ(last.status, 200) << last.body;
    const EngineRequest request = fake.engine->request(id++);
    EXPECT_EQ(request.kept.size(), 1u);
    const int32_t tokens = request.kept.empty() ? 0 : request.kept[0].tokens;
    return *fake.service->prompts().detokenize(
        std::span(request.prompt).first(static_cast<size_t>(tokens)));
  };
  EXPECT_THAT(kept_text(tools + talk("", "")), testing::EndsWith("[user]"));
  EXPECT_THAT(kept_text(tools + talk("," + mark, "")),
              testing::EndsWith("[user]q[assistant][call]f{}"));
  EXPECT_THAT(kept_text(tools + talk("," + mark, "," + mark)), testing::EndsWith("[tool]r"));
  EXPECT_THAT(kept_text(mark + "," + tools + talk("", "")), testing::EndsWith("[tool]r[user]u"));
}

// A tenth of a prompt was cached, more is kept for an hour, and still more for minutes.
TEST_F(HttpMessages, ShowWhatTheCacheHadAndWhatItKeepsAlsoInStreams) {
  start();
  const std::string marked = R"("max_tokens":99,"system":[{"type":"text","text":"Speak.",
      "cache_control":{"type":"ephemeral","ttl":"1h"}}],"messages":[{"role":"user","content":[
      {"type":"text","text":"A question.","cache_control":{"type":"ephemeral"}}]}])";
  for (const char* const stream : {"", R"(,"stream":true)"}) {
    const RequestId id = fake.engine->requests();
    HttpClient client(port());
    client.send(print_post("/v1/messages", "{" + marked + stream + "}"));
    ASSERT_TRUE(fake.engine->wait_for_requests(id + 1));
    fake.engine->tell(id, {.cached_tokens = 4, .kept = {14, 32}});
    fake.engine->emit(id, "x");
    fake.engine->finish(id, FinishReason::stop);
    last = client.read_response();
    const auto tokens = static_cast<int64_t>(fake.engine->request(id).prompt.size());
    const std::string usage =
        R"("usage":{"input_tokens":)" + std::to_string(tokens - 32) +
        R"(,"cache_creation_input_tokens":28,"cache_read_input_tokens":4,"cache_creation":)"
        R"({"ephemeral_5m_input_tokens":18,"ephemeral_1h_input_tokens":10},"output_tokens":)";
    EXPECT_THAT(last.body, HasSubstr(usage));
    if (*stream != '\0') {
      EXPECT_THAT(last.body.substr(0, last.body.find("content_block_start")), HasSubstr(usage))
          << "message_start knows it too";
    }
  }
}

// A sorted input would be another text than the one the model wrote, and miss its cached prefix.
TEST_F(HttpMessages, KeepTheOrderOfAnInput) {
  answer("x");
  const auto shown = [&](const std::string& input) {
    post(R"("max_tokens":9,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[
        {"type":"text","text":"a"},{"type":"tool_use","id":"t","name":"f","input":)" +
         input + R"(},{"input":{"z":1},"type":"tool_use","id":"u","name":"g"}]}])");
    EXPECT_EQ(last.status, 200) << last.body;
    return prompt(fake.engine->requests() - 1);
  };
  EXPECT_THAT(
      shown(R"({"b" : [ 1e3,2.0 ],"a":{"d":"\u00e9, x: y","c":null}})"),
      HasSubstr(R"([call]f{"b": [1e3, 2.0], "a": {"d": "\u00e9, x: y", "c": null}}[call]g)"));
  EXPECT_THAT(shown("[]"), HasSubstr("[call]f{}"));
  EXPECT_THAT(shown("null"), HasSubstr("[call]f{}"));
  EXPECT_THAT(shown(R"("{\"city\": \"Par")"), HasSubstr(R"([call]f{"city": "Par[call]g)"));
}

TEST_F(HttpMessages, LoadDeferredToolsWhereAResultRefersToThem) {
  answer("x");
  const std::string tools = R"("tools":[{"name":"search","input_schema":{"type":"object"}},
      {"name":"late","description":"L","input_schema":{"type":"object"},"defer_loading":true}])";
  const std::string history = R"("max_tokens":9,"messages":[{"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"search","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[
        {"type":"tool_reference","tool_name":"late"},{"type":"tool_reference","tool_name":"gone"}]}]}],)";
  post(history + tools + R"(,"tool_choice":{"type":"tool","name":"late"})");
  ASSERT_EQ(last.status, 200) << last.body;
  EXPECT_THAT(prompt(0), HasSubstr(R"([tool]{"type":"function","function":{"name":"late")"));
  EXPECT_THAT(last.headers.at("warning"), HasSubstr("content[1] refers to a tool that is not in"));
  post(std::string(kHello) + "," + tools + R"(,"tool_choice":{"type":"tool","name":"late"})");
  EXPECT_EQ(last.status, 400) << "not loaded";
  post(std::string(kHello) + "," + tools);
  EXPECT_THAT(prompt(1), testing::Not(HasSubstr("late")));
  post(std::string(kHello) + R"(,"tools":[{"type":"tool_search_tool_regex_20251119","name":"s"},
      {"name":"late","input_schema":{"type":"object"},"defer_loading":true}])");
  EXPECT_THAT(prompt(2), HasSubstr("late")) << "nobody else can find it";
}

// Anthropic's models know these tools, so requests have only their types and names.
TEST_F(HttpMessages, DescribeTheToolsThatAnthropicPublishesAndTheClientRuns) {
  answer("<tool_call>{\"name\":\"bash\",\"arguments\":{\"command\":\"ls\"}}</tool_call>");
  const std::string tools =
      R"("tools":[{"type":"bash_20250124","name":"bash","cache_control":{"type":"ephemeral"}},
      {"type":"text_editor_20250124","name":"str_replace_editor"},
      {"type":"text_editor_20250728","name":"str_replace_based_edit_tool","max_characters":9},
      {"type":"memory_20250818","name":"memory"},{"type":"computer_20250124","name":"computer"}])";
  const std::string fields =
      R"("max_tokens":99,"messages":[{"role":"user","content":"hi"}],)" + tools;
  const json body = post(fields);
  ASSERT_EQ(last.status, 200) << last.body;
  EXPECT_EQ(body.at("content")[0].at("input"), json({{"command", "ls"}}));
  const std::string shown = prompt(0);
  for (const char* const text :
       {R"("name":"bash")", R"("restart":{)", R"("name":"str_replace_editor")", R"("undo_edit")",
        R"("name":"str_replace_based_edit_tool")", R"("insert_text":{)", R"("name":"memory")",
        R"("old_path":{)"}) {
    EXPECT_THAT(shown, HasSubstr(text));
  }
  EXPECT_THAT(shown, testing::Not(HasSubstr("computer")));
  EXPECT_THAT(last.headers.at("warning"), HasSubstr("tools[4]"));
  EXPECT_THAT(last.headers.at("warning"), testing::Not(HasSubstr("tools[0]")));
  post(fields + R"(,"tool_choice":{"type":"tool","name":"bash"})");
  EXPECT_EQ(last.status, 200) << last.body;
  post(fields + R"(,"tool_choice":{"type":"tool","name":"computer"})");
  EXPECT_EQ(last.status, 400) << "it needs images";
  post(std::string(kHello) + R"(,"tools":[{"type":"bash_20250124"}])");
  EXPECT_THAT(last.body, HasSubstr("tools[0]"));
  EXPECT_EQ(last.status, 400) << "without a name";
}

TEST_F(HttpMessages, AreCounted) {
  start();
  EXPECT_EQ(post(R"("messages":[{"role":"user","content":"hi"}])", "/count_tokens"),
            json({{"input_tokens", std::string("s[user]hi[assistant]").size()}}))
      << "<s> is one token";
}

// The count is that of the same body's answer, which a forced call or a schema begins.
TEST_F(HttpMessages, AreCountedWithTheirTools) {
  answer("x");
  const std::string user = R"("messages":[{"role":"user","content":"hi"}])";
  for (const std::string& fields : std::vector<std::string>{
           user + kTool, user + kTool + R"(,"tool_choice":{"type":"none"})",
           user + kTool + R"(,"tool_choice":{"type":"any"})",
           user + kTool + R"(,"tool_choice":{"type":"tool","name":"f"})",
           user + R"(,"output_config":{"format":{"type":"json_schema","schema":{}}})"}) {
    const json usage = post(fields + R"(,"max_tokens":9)").at("usage");
    const int tokens = usage.at("input_tokens").get<int>();
    EXPECT_EQ(post(fields, "/count_tokens"), json({{"input_tokens", tokens}})) << fields;
  }
  post(user + kTool + R"(,"tool_choice":{"type":"tool","name":"g"})", "/count_tokens");
  EXPECT_EQ(last.status, 400) << "as an answer";
}

TEST_F(HttpMessages, AreRefusedInAnthropicsShape) {
  start();
  for (const auto& [fields, place] : std::vector<std::pair<std::string, std::string>>{
           {R"("messages":[{"role":"user","content":"hi"}])", "max_tokens"},
           {R"("max_tokens":1,"messages":[])", "messages"},
           {R"("max_tokens":1,"messages":[{"role":"system","content":"x"}])", "messages[0].role"},
           {R"("max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}])",
            "messages[0].content[0]"},
           {std::string(kHello) + R"(,"tools":[{"type":5,"name":"f"}])", "tools[0]"},
           {std::string(kHello) +
                R"(,"tools":[{"type":"web_search_20250305","name":"web_search"}],"tool_choice":
                {"type":"tool","name":"web_search"})",
            "tool_choice"},
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

// Also where no endpoint answers: Anthropic's clients read the type of an error from its body.
TEST_F(HttpMessages, AreRefusedInAnthropicsShapeBeforeTheirEndpointToo) {
  start({.body_bytes = 1000}, {.api_keys = ApiKeys({"secret"})});
  const std::string key = "x-api-key: secret\r\n";
  const auto send = [&](std::string_view method, const std::string& path, std::string_view headers,
                        std::string_view body = "{}") {
    HttpClient client(port());
    return method == "POST" ? client.post(path, body, headers)
                            : client.request(method, path, headers);
  };
  const auto expect = [&](const HttpClientResponse& response, int status, const char* type) {
    EXPECT_EQ(response.status, status) << response.body;
    const json body = json::parse(response.body);
    EXPECT_EQ(body.at("type"), "error");
    EXPECT_EQ(body.at("error").at("type"), type);
    return body.at("error").at("message").get<std::string>();
  };
  expect(send("POST", "/v1/messages", ""), 401, "authentication_error");
  expect(send("POST", "/v1/messages/batches", ""), 401, "authentication_error");
  expect(send("GET", "/v1/messages", key), 405, "invalid_request_error");
  expect(send("DELETE", "/v1/messages/count_tokens", key), 405, "invalid_request_error");
  EXPECT_THAT(expect(send("POST", "/v1/messages/batches?beta=true", key), 404, "not_found_error"),
              HasSubstr("this server has /v1/messages and /v1/messages/count_tokens"));
  expect(send("GET", "/v1/messages/batches/b1/results", key), 404, "not_found_error");
  expect(send("POST", "/v1/messages", key, "{" + std::string(kHello) + R"(,"model":"x"})"), 404,
         "not_found_error");
  expect(send("POST", "/v1/messages", key + "Content-Encoding: gzip\r\n", "no gzip"), 400,
         "invalid_request_error");
  expect(send("POST", "/v1/messages", key, std::string(2000, ' ')), 413, "request_too_large");
  expect(send("POST", "/v1/messages", key + "Content-Encoding: br\r\n"), 415,
         "invalid_request_error");
  EXPECT_THAT(send("GET", "/v1/messagesof", key).body, HasSubstr(R"("param":null)")) << "OpenAI's";
}

TEST_F(HttpMessages, AreRefusedInAnthropicsShapeWhileTheModelLoads) {
  routes = std::make_unique<Routes>(RoutesOptions{});
  auto started = HttpListener::start({.port = 0}, *routes, fake.work);
  ASSERT_TRUE(started.ok()) << started.status();
  listener = *std::move(started);
  EXPECT_EQ(post(kHello).at("error").at("type"), "overloaded_error");
  EXPECT_EQ(last.headers.at("retry-after"), "1");
  HttpClient elsewhere(port());
  const auto foreign = elsewhere.post("/v1/messages", "{}", "Origin: http://evil.example\r\n");
  EXPECT_EQ(json::parse(foreign.body).at("error").at("type"), "permission_error");
}

}  // namespace
}  // namespace tessera
