// Requests as coding agents and agent frameworks send them, and the tools that only they have.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

class HttpAgents : public HttpFixture {
 protected:
  void answer(const std::string& text) {
    fake.engine->answer_with([text](const EngineRequest&) { return text; });
    start();
  }

  Json post(const std::string& path, const std::string& body, const std::string& headers = {}) {
    HttpClient client(port());
    last = client.post(path, body, headers);
    return last.body.starts_with('{') ? Json::parse(last.body) : Json();
  }

  std::vector<Json> events() const {
    std::vector<Json> list;
    for (std::size_t at = 0; (at = last.body.find("\ndata: ", at)) != std::string::npos; ++at) {
      const std::size_t begin = at + 7;
      list.push_back(Json::parse(last.body.substr(begin, last.body.find('\n', begin) - begin)));
    }
    return list;
  }

  std::string prompt(RequestId id) {
    return *fake.service->prompts().detokenize(fake.engine->request(id).prompt);
  }

  HttpClientResponse last;
};

// A folder with a file for each program: bodies of several turns, and the parts that their prompts
// must have.
const std::filesystem::path kAgentBodies =
    std::filesystem::path(TESSERA_SOURCE_DIR) / "tests" / "server" / "agents";

class RecordedRequests : public HttpAgents, public testing::WithParamInterface<const char*> {
 protected:
  // Sends one request, under the name of the model that is served.
  void replay(const Json& file, const Json& request) {
    Json body = request.at("body");
    if (body.contains("model")) {
      body["model"] = "fake";
    }
    std::string headers;
    const Json given = file.value("headers", Json::object());
    for (const auto& [name, value] : given.items()) {
      headers += name + ": " + value.get<std::string>() + "\r\n";
    }
    post(request.contains("path") ? request.at("path") : file.at("path"), body.dump(), headers);
  }
};

TEST_P(RecordedRequests, AreServed) {
  std::ifstream stream(kAgentBodies / (std::string(GetParam()) + ".json"));
  const Json file = Json::parse(stream);
  answer("Well.");
  RequestId next = 0;
  for (const Json& request : file.at("requests")) {
    SCOPED_TRACE(request.at("says"));
    replay(file, request);
    ASSERT_EQ(last.status, 200) << last.body;
    if (last.body.find("input_tokens\":") < 3) {
      continue;  // a count, which generates nothing
    }
    const std::string text = prompt(next++);
    for (const Json& part : request.value("prompt", Json::array())) {
      EXPECT_THAT(text, HasSubstr(part.get<std::string>()));
    }
    for (const Json& part : request.value("absent", Json::array())) {
      EXPECT_THAT(text, testing::Not(HasSubstr(part.get<std::string>())));
    }
    const std::string warning = request.value("warning", "");
    EXPECT_EQ(last.headers.contains("warning"), !warning.empty());
    EXPECT_THAT(last.headers["warning"], HasSubstr(warning));
  }
}

INSTANTIATE_TEST_SUITE_P(Agents, RecordedRequests,
                         testing::Values("aider", "claude_code", "cline", "codex", "mini_swe_agent",
                                         "openai_agents", "opencode", "pydantic_ai", "qwen_code",
                                         "smolagents"),
                         [](const auto& agent) { return std::string(agent.param); });

TEST(AgentBodies, AreAllReplayed) {
  const auto files = std::filesystem::directory_iterator(kAgentBodies);
  EXPECT_EQ(std::distance(begin(files), end(files)), 10);
}

constexpr const char* kCodexTools = R"("tools":[
    {"type":"namespace","name":"mcp__git","tools":[
      {"type":"function","name":"log","parameters":{"type":"object"}},
      {"type":"custom","name":"note"}]},
    {"type":"custom","name":"apply_patch","format":{"type":"text"}},{"type":"web_search"}])";

TEST_F(HttpAgents, GetCallsInTheNamespaceOfTheFunction) {
  answer(
      "<tool_call>{\"name\":\"mcp__git.log\",\"arguments\":{\"n\":1}}</tool_call>"
      "<tool_call>{\"name\":\"log\"}</tool_call>");
  const Json body = post("/v1/responses", std::string(R"({"input":"q",)") + kCodexTools + "}");
  ASSERT_EQ(last.status, 200) << last.body;
  for (const std::size_t i : {0u, 1u}) {
    const Json& call = body.at("output").at(i);
    EXPECT_EQ(call.at("type"), "function_call");
    EXPECT_EQ(call.at("namespace"), "mcp__git");
    EXPECT_EQ(call.at("name"), "log");
  }
  post("/v1/responses", R"({"input":[{"type":"function_call_output","output":"r","call_id":)" +
                            body.at("output").at(0).at("call_id").dump() +
                            R"(}],"previous_response_id":)" + body.at("id").dump() + "}");
  EXPECT_THAT(prompt(1), HasSubstr(R"([call]mcp__git.log{"n":1})")) << "as the model wrote it";
}

TEST_F(HttpAgents, GetTheTextOfACustomTool) {
  answer(R"(Ok.<tool_call>{"name":"apply_patch","arguments":{"input":"a\n\"b\""}}</tool_call>)"
         R"(<tool_call>{"name":"mcp__git.note","arguments":{"input":"n"}}</tool_call>)");
  const std::string asked = std::string(R"({"input":"q",)") + kCodexTools;
  const Json body = post("/v1/responses", asked + "}");
  ASSERT_EQ(body.at("output").size(), 3u) << body;
  const Json& call = body.at("output").at(1);
  EXPECT_EQ(call.at("type"), "custom_tool_call");
  EXPECT_EQ(call.at("input"), "a\n\"b\"");
  EXPECT_FALSE(call.contains("arguments"));
  EXPECT_EQ(body.at("output").at(2).at("namespace"), "mcp__git");
  EXPECT_EQ(body.at("output").at(2).at("input"), "n");
  post("/v1/responses", asked + R"(,"stream":true})");
  std::string input;
  std::vector<std::string> done;
  for (const Json& event : events()) {
    if (event.at("type") == "response.custom_tool_call_input.delta") {
      input += event.at("delta").get<std::string>();
    } else if (event.at("type") == "response.custom_tool_call_input.done") {
      done.push_back(event.at("input"));
    }
  }
  EXPECT_EQ(input, "a\n\"b\"n");
  EXPECT_THAT(done, testing::ElementsAre("a\n\"b\"", "n"));
  EXPECT_EQ(events().back().at("response").at("output").at(1).at("input"), "a\n\"b\"");
  post("/v1/responses", R"({"input":"r","previous_response_id":)" + body.at("id").dump() + "}");
  EXPECT_THAT(prompt(2), HasSubstr(R"([call]apply_patch{"input": "a\n\"b\""})"));
}

TEST_F(HttpAgents, GetTheTextOfACustomToolInChats) {
  answer(R"(<tool_call>{"name":"p","arguments":{"input":"a\nb"}}</tool_call>)"
         R"(<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>)");
  const std::string asked = R"({"messages":[{"role":"user","content":"q"}],"tools":[
      {"type":"custom","custom":{"name":"p"}},{"type":"function","function":{"name":"f"}}])";
  const Json body = post("/v1/chat/completions", asked + "}");
  const Json& calls = body.at("choices").at(0).at("message").at("tool_calls");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls.at(0).at("type"), "custom");
  EXPECT_EQ(calls.at(0).at("custom"), Json({{"name", "p"}, {"input", "a\nb"}}));
  EXPECT_EQ(calls.at(1).at("function").at("arguments"), R"({"x":1})");
  post("/v1/chat/completions", asked + R"(,"stream":true})");
  EXPECT_THAT(last.body, HasSubstr(R"("type":"custom","custom":{"name":"p","input":""})"));
  EXPECT_THAT(last.body, HasSubstr(R"({"index":0,"custom":{"input":"a\nb"}})"));
  post("/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":)" +
           calls.dump() + R"(},{"role":"tool","tool_call_id":"c","content":"r"}]})");
  EXPECT_THAT(prompt(2), HasSubstr(R"([call]p{"input": "a\nb"}[call]f{"x":1}[tool]r)"));
}

TEST_F(HttpAgents, KeepACallWhoseInputWasCutOff) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/responses", std::string(R"({"input":"q",)") + kCodexTools + "}"));
  fake.engine->wait_for_requests(1);
  fake.engine->emit(0, R"(<tool_call>{"name":"apply_patch","arguments":{"input":"a)");
  fake.engine->finish(0, FinishReason::length);
  const Json body = Json::parse(client.read_response().body);
  EXPECT_EQ(body.at("status"), "incomplete");
  EXPECT_EQ(body.at("output").at(0).at("input"), R"({"input":"a)");
}

TEST_F(HttpAgents, MayContinueAConversationOfAnotherServer) {
  answer("x");
  post("/v1/responses", R"({"input":[{"role":"user","content":"q"},
      {"type":"reasoning","summary":[],"encrypted_content":"gAAA"},
      {"type":"web_search_call","id":"ws_1","status":"completed"},
      {"type":"message","role":"assistant","content":[{"type":"refusal","refusal":"No."}]},
      {"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\": "},
      {"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"r"}]}]})");
  ASSERT_EQ(last.status, 200) << last.body;
  EXPECT_THAT(prompt(0), HasSubstr(R"([user]q[assistant]No.[call]f{"a": [tool]r)"));
  EXPECT_THAT(last.headers.at("warning"), HasSubstr("encrypted"));
  EXPECT_THAT(last.headers.at("warning"), HasSubstr("input[2] is left out"));
  post("/v1/messages", R"({"max_tokens":9,"messages":[{"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"redacted_thinking","data":"x"},
       {"type":"server_tool_use","id":"s","name":"web_search","input":{}},
       {"type":"web_search_tool_result","tool_use_id":"s","content":[]},
       {"type":"text","text":"a"}]},{"role":"user","content":"r"}]})");
  ASSERT_EQ(last.status, 200) << last.body;
  EXPECT_THAT(prompt(1), HasSubstr("[user]q[assistant]a[user]r"));
  EXPECT_THAT(last.headers.at("warning"), HasSubstr("server_tool_use"));
}

}  // namespace
}  // namespace tessera
