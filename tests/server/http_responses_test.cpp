// OpenAI's /v1/responses: items, events, stored responses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "server/responses/response_store.h"
#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class HttpResponses : public HttpFixture {
 protected:
  void answer(const std::string& text, RoutesOptions options = {}) {
    fake.engine->answer_with([text](const EngineRequest&) { return text; });
    start({}, std::move(options));
  }

  json post(const std::string& fields, const std::string& headers = {}) {
    HttpClient client(port());
    last = client.post("/v1/responses", "{" + fields + "}", headers);
    return last.body.starts_with("event:") ? json() : json::parse(last.body);
  }

  json send(std::string_view method, const json& id, const std::string& headers = {}) {
    HttpClient client(port());
    last = client.request(method, "/v1/responses/" + id.get<std::string>(), headers);
    return json::parse(last.body);
  }

  // The events of a stream.
  std::vector<json> events() const {
    std::vector<json> list;
    for (size_t at = 0; (at = last.body.find("\ndata: ", at)) != std::string::npos; ++at) {
      const size_t begin = at + 7;
      list.push_back(json::parse(last.body.substr(begin, last.body.find('\n', begin) - begin)));
    }
    return list;
  }

  std::string prompt(RequestId id) {
    return *fake.service->prompts().detokenize(fake.engine->request(id).prompt);
  }

  HttpClientResponse last;
};

class NoWaker final : public Waker {
  void wake() override {}
};

constexpr const char* kWeatherTool =
    R"(,"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{}}}])";
constexpr const char* kThreeItems =
    "<think>Hm.</think>Well.<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>";

TEST_F(HttpResponses, AnswerWithItems) {
  answer(kThreeItems);
  const json body = post(std::string(R"("input":"hi","metadata":{"a":"b"})") + kWeatherTool);
  ASSERT_EQ(last.status, 200) << last.body;
  EXPECT_EQ(body.at("object"), "response");
  EXPECT_EQ(body.at("status"), "completed");
  EXPECT_EQ(body.at("metadata"), json({{"a", "b"}}));
  EXPECT_EQ(body.at("tools").at(0).at("name"), "f");
  const json& output = body.at("output");
  ASSERT_EQ(output.size(), 3U) << body;
  EXPECT_EQ(output[0].at("type"), "reasoning");
  EXPECT_EQ(output[0].at("content").at(0).at("text"), "Hm.");
  EXPECT_EQ(output[1].at("content").at(0).at("text"), "Well.");
  EXPECT_EQ(output[2].at("name"), "f");
  EXPECT_EQ(json::parse(output[2].at("arguments").get<std::string>()), json({{"a", 1}}));
  const json& usage = body.at("usage");
  EXPECT_EQ(usage.at("output_tokens"), std::string(kThreeItems).size());
  EXPECT_EQ(usage.at("output_tokens_details").at("reasoning_tokens"),
            std::string("<think>Hm.</think>").size());
}

TEST_F(HttpResponses, StreamEventsInOpenAisOrder) {
  answer(kThreeItems);
  const json whole = post(std::string(R"("input":"hi")") + kWeatherTool);
  post(std::string(R"("input":"hi","stream":true)") + kWeatherTool);
  const std::vector<json> list = events();
  std::vector<std::string> types;
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i].at("sequence_number"), i);
    types.push_back(list[i].at("type").get<std::string>().substr(9));  // after "response."
  }
  types.erase(std::unique(types.begin(), types.end()), types.end());
  EXPECT_THAT(types, ElementsAre("created", "in_progress",  //
                                 "output_item.added", "content_part.added", "reasoning_text.delta",
                                 "reasoning_text.done", "content_part.done", "output_item.done",  //
                                 "output_item.added", "content_part.added", "output_text.delta",
                                 "output_text.done", "content_part.done", "output_item.done",  //
                                 "output_item.added", "function_call_arguments.delta",
                                 "function_call_arguments.done", "output_item.done", "completed"));
  json last_response = list.back().at("response");
  std::string text;
  for (const json& event : list) {
    text += event.at("type") == "response.output_text.delta" ? event.at("delta").get<std::string>()
                                                             : "";
  }
  EXPECT_EQ(text, "Well.");
  for (size_t i = 0; i < 3; ++i) {
    json a = whole.at("output").at(i);
    json b = last_response.at("output").at(i);
    for (const char* id : {"id", "call_id"}) {
      a.erase(id);
      b.erase(id);
    }
    EXPECT_EQ(a, b);
  }
  EXPECT_EQ(whole.at("usage").at("output_tokens"), last_response.at("usage").at("output_tokens"));
}

TEST_F(HttpResponses, SayThatTheyAreIncomplete) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/responses", R"({"input":"hi","stream":true,"max_output_tokens":2})"));
  fake.engine->wait_for_requests(1);
  fake.engine->emit(0, "ab");
  fake.engine->finish(0, FinishReason::length);
  last = client.read_response();
  const json final = events().back();
  EXPECT_EQ(final.at("type"), "response.incomplete");
  EXPECT_EQ(final.at("response").at("incomplete_details"), json({{"reason", "max_output_tokens"}}));
  EXPECT_EQ(final.at("response").at("output").at(0).at("status"), "incomplete");
}

TEST_F(HttpResponses, TellAFailureInAStream) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/responses", R"({"input":"hi","stream":true})"));
  fake.engine->wait_for_requests(1);
  fake.engine->emit(0, "ab");
  fake.engine->finish(0, FinishReason::failed);
  last = client.read_response();
  EXPECT_EQ(events().back().at("type"), "response.failed");
  EXPECT_EQ(events().back().at("response").at("error").at("code"), "server_error");
  EXPECT_EQ(send("GET", events().back().at("response").at("id")).contains("error"), true)
      << "it is not stored";
}

TEST_F(HttpResponses, ContinueStoredOnes) {
  answer("<think>Hm.</think>Well.");
  const json first = post(R"("input":"q","instructions":"S")");
  EXPECT_EQ(prompt(0), "<s>[system]S[user]q[assistant]");
  const json second = post(R"("input":"r","previous_response_id":)" + first.at("id").dump());
  ASSERT_EQ(last.status, 200) << last.body;
  EXPECT_EQ(prompt(1), "<s>[user]q[assistant]Well.[user]r[assistant]")
      << "instructions are those of one request";
  EXPECT_EQ(second.at("previous_response_id"), first.at("id"));
  EXPECT_EQ(send("GET", second.at("id")), second);
  EXPECT_EQ(send("DELETE", first.at("id")),
            json({{"id", first.at("id")}, {"object", "response"}, {"deleted", true}}));
  EXPECT_TRUE(send("GET", first.at("id")).contains("error"));
  EXPECT_EQ(last.status, 404);
  const json refused = post(R"("input":"r","previous_response_id":)" + first.at("id").dump());
  EXPECT_EQ(refused.at("error").at("code"), "previous_response_not_found");
}

TEST_F(HttpResponses, AreNotStoredByAServerWithoutAStore) {
  answer("x", {.response_store = 0});
  EXPECT_EQ(post(R"("input":"q")").at("store"), false);
}

TEST_F(HttpResponses, AreNotStoredIfAskedNotTo) {
  answer("x");
  const json body = post(R"("input":"q","store":false)");
  send("GET", body.at("id"));
  EXPECT_EQ(last.status, 404);
}

TEST_F(HttpResponses, BelongToTheirKey) {
  answer("x", {.api_keys = ApiKeys({"one", "two"})});
  const std::string one = "Authorization: Bearer one\r\n";
  const std::string two = "Authorization: Bearer two\r\n";
  const json body = post(R"("input":"q")", one);
  send("GET", body.at("id"), two);
  EXPECT_EQ(last.status, 404);
  send("DELETE", body.at("id"), two);
  EXPECT_EQ(last.status, 404);
  post(R"("input":"q","previous_response_id":)" + body.at("id").dump(), two);
  EXPECT_EQ(last.status, 400);
  send("GET", body.at("id"), one);
  EXPECT_EQ(last.status, 200);
}

TEST_F(HttpResponses, TakeItemsOfEarlierOutput) {
  answer("x");
  post(std::string(R"("input":[
      {"role":"developer","content":"S"},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"q"}]},
      {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"t"}]},
      {"type":"message","id":"msg_1","status":"completed","role":"assistant",
       "content":[{"type":"output_text","text":"a","annotations":[]}]},
      {"type":"function_call","call_id":"c","name":"f","arguments":"{}","id":"fc_1"},
      {"type":"function_call_output","call_id":"c","output":"r"},
      {"role":"user","content":"u"}])"));
  ASSERT_EQ(last.status, 200) << last.body;
  const std::string text = prompt(0);
  EXPECT_THAT(text, HasSubstr("[user]q[assistant]a"));
  EXPECT_THAT(text, HasSubstr("r[user]u[assistant]"));
}

TEST_F(HttpResponses, DropTheOldestTurnsIfAsked) {
  answer("x");
  const int context = fake.engine->options().context;
  std::string turns;
  for (int i = 0; i < 20; ++i) {
    turns += R"({"role":"user","content":")" + std::string(static_cast<size_t>(context / 8), 'a') +
             R"("},)";
  }
  const std::string input =
      R"("instructions":"S","input":[)" + turns + R"({"role":"user","content":"last"}])";
  EXPECT_EQ(post(input).at("error").at("code"), "context_length_exceeded");
  post(input + R"(,"truncation":"auto")");
  ASSERT_EQ(last.status, 200) << last.body;
  EXPECT_THAT(prompt(0), testing::StartsWith("<s>[system]S[user]a"));
  EXPECT_THAT(prompt(0), testing::EndsWith("[user]last[assistant]"));
  EXPECT_GT(prompt(0).size(), static_cast<size_t>(context) / 2) << "no more than needed";
}

TEST_F(HttpResponses, ContinueALongOneAsAJobOfItsSize) {
  answer("x");
  const std::string text(50'000, 'a');
  const json first = post(R"("input":")" + text + '"');
  std::size_t expected = 1;
  for (const char* const more : {"", R"(,"truncation":"auto")"}) {
    HttpRequest request;
    request.method = "POST";
    request.path = "/v1/responses";
    request.headers = {{"host", "localhost"}};
    const auto admission = routes->admit(request);
    request.body = R"({"input":"r","previous_response_id":)" + first.at("id").dump() + more + "}";
    HttpResult result =
        routes->handle(request, std::get<HttpAdmission>(admission), std::make_shared<NoWaker>());
    auto& begun = std::get<std::unique_ptr<HttpAnswer>>(result);
    EXPECT_GT(begun->start_bytes(), text.size()) << "the body has " << request.body.size();
    EXPECT_EQ(fake.engine->requests(), expected++) << "nothing is submitted before that job";
    while (!begun->start()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

TEST_F(HttpResponses, AreRefusedByFieldAndPlace) {
  start();
  for (const auto& [fields, place] : std::vector<std::pair<std::string, std::string>>{
           {R"("model":"")", "input"},
           {R"("input":[])", "input"},
           {R"("input":[{"type":"item_reference","id":"x"}])", "input[0].type"},
           {R"("input":[{"role":"user","content":[{"type":"input_image"}]}])",
            "input[0].content[0]"},
           {R"("input":[{"role":"user"}])", "input[0].content"},
           {R"("input":[{"type":"function_call","call_id":"c","name":"f","arguments":[]}])",
            "input[0].arguments"},
           {R"("input":[{"type":"compaction","encrypted_content":"x"}])", "input[0].type"},
           {R"("input":"q","tools":[{"type":5}])", "tools[0]"},
           {R"("input":"q","tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search"})",
            "tool_choice"},
           {R"("input":"q","tools":[{"type":"web_search"}],"tool_choice":"required")",
            "tool_choice"},
           {R"("input":"q","tools":[{"type":"namespace","name":"n"}])", "tools[0].tools"},
           {R"("input":"q","text":{"verbosity":"loud"})", "text.verbosity"},
           {R"("input":"q","client_metadata":1)", "client_metadata"},
           {R"("input":"q","tool_choice":"required")", "tool_choice"},
           {R"("input":"q","text":{"format":{"type":"xml"}})", "text.format.type"},
           {R"("input":"q","text":{"format":{"type":"json_schema","schema":{"$ref":"#/x"}}})",
            "text.format.schema"},
           {R"("input":"q","reasoning":{"effort":"much"})", "reasoning.effort"},
           {R"("input":"q","background":true)", "background"},
           {R"("input":"q","include":["file_search_call.results"])", "include"},
           {R"("input":"q","top_logprobs":2)", "top_logprobs"},
           {R"("input":"q","truncation":"some")", "truncation"},
           {R"("input":"q","metadata":{"a":1})", "metadata"},
           {R"("input":"q","conversation":"c")", "conversation"},
           {R"("input":"q","messages":[])", "messages"}}) {
    const json body = post(fields);
    EXPECT_EQ(last.status, 400) << fields << last.body;
    EXPECT_THAT(body.at("error").at("message").get<std::string>(), HasSubstr(place)) << fields;
  }
}

TEST_F(HttpResponses, ShowLogProbabilitiesOfTheText) {
  answer("<think>Hm.</think>ab");
  const json body =
      post(R"("input":"q","include":["message.output_text.logprobs"],"top_logprobs":1)");
  ASSERT_EQ(last.status, 200) << last.body;
  const json& output = body.at("output");
  std::string text;
  for (const json& token : output.back().at("content").at(0).at("logprobs")) {
    text += token.at("token").get<std::string>();
  }
  EXPECT_EQ(text, "ab") << "without the thought";
}

StoredResponse response_of(size_t bytes) {
  return {.messages = {}, .body = std::string(bytes, 'x')};
}

TEST(ResponseStore, KeepsTheMostRecentlyUsed) {
  ResponseStore store(3 * 2000);
  store.put("a", "1", response_of(1000));
  store.put("a", "2", response_of(1000));
  store.put("a", "3", response_of(1000));
  EXPECT_NE(store.find("a", "1"), nullptr);
  store.put("a", "4", response_of(1000));
  EXPECT_EQ(store.find("a", "2"), nullptr) << "used least recently";
  EXPECT_NE(store.find("a", "1"), nullptr);
  store.put("a", "5", response_of(10000));
  EXPECT_EQ(store.find("a", "5"), nullptr) << "larger than the store";
  EXPECT_NE(store.find("a", "4"), nullptr);
}

TEST(ResponseStore, DropsHalfOfItsBytesWhenMemoryIsShort) {
  ResponseStore store(1 << 20);
  for (int i = 0; i < 8; ++i) {
    store.put(i < 2 ? "small" : "large", std::to_string(i), response_of(1000));
  }
  const std::size_t before = store.bytes();
  store.shrink();
  EXPECT_LE(store.bytes(), before / 2);
  EXPECT_GT(store.bytes(), before / 4);
  EXPECT_NE(store.find("small", "1"), nullptr) << "the owner with the most loses first";
  for (int i = 0; i < 10; ++i) {
    store.shrink();
  }
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(ResponseStore, TakesFromTheOwnerWithTheMost) {
  ResponseStore store(4 * 2000);
  store.put("small", "s", response_of(1000));
  for (int i = 0; i < 50; ++i) {
    store.put("large", std::to_string(i), response_of(1000));
  }
  EXPECT_NE(store.find("small", "s"), nullptr);
  EXPECT_NE(store.find("large", "49"), nullptr);
  EXPECT_EQ(store.find("large", "0"), nullptr);
  EXPECT_EQ(store.find("other", "s"), nullptr);
  EXPECT_FALSE(store.erase("large", "s"));
  EXPECT_TRUE(store.erase("small", "s"));
}

TEST_F(HttpResponses, SendPingsAfterTheFirstEventsOfALongPrompt) {
  start({.ping_interval = std::chrono::milliseconds(20)});
  HttpClient client(port());
  client.send(print_post("/v1/responses", R"({"input":"a","stream":true})"));
  ASSERT_TRUE(client.read_until(": ping\n\n"));
  fake.engine->emit(0, "x");
  fake.engine->finish(0, FinishReason::stop);
  last = client.read_response();
  const std::size_t ping = last.body.find(": ping");
  EXPECT_LT(last.body.find("response.in_progress"), ping);
  EXPECT_GT(last.body.find("response.output_item.added"), ping);
  EXPECT_EQ(events().back().at("type"), "response.completed");
}

// The count is that of the same body's answer, with everything before and around its input.
TEST_F(HttpResponses, InputTokensAreCountedAsForAnAnswer) {
  answer("Well.");
  const std::string first = post(R"("input":"one")").at("id").get<std::string>();
  const std::string tool = R"("tools":[{"type":"function","name":"f","parameters":{}}])";
  for (const std::string& fields : std::vector<std::string>{
           R"("input":"two")",
           R"("input":[{"role":"user","content":"two"}],"instructions":"Be brief.")",
           R"("input":"two","previous_response_id":")" + first + R"(","instructions":"Be brief.")",
           R"("input":"two",)" + tool, R"("input":"two",)" + tool + R"(,"tool_choice":"required")",
           R"("input":"two","text":{"format":{"type":"json_object"}},"truncation":"auto")"}) {
    const json answered = post(fields);
    ASSERT_EQ(last.status, 200) << last.body;
    HttpClient client(port());
    const auto counted = client.post("/v1/responses/input_tokens", "{" + fields + "}");
    EXPECT_EQ(json::parse(counted.body),
              json({{"object", "response.input_tokens"},
                    {"input_tokens", answered.at("usage").at("input_tokens")}}))
        << fields;
  }
}

TEST_F(HttpResponses, InputTokensOfWhatIsNotThereAreRefused) {
  answer("x");
  HttpClient client(port());
  const std::size_t before = fake.engine->requests();
  for (const auto& [fields, param] : std::vector<std::pair<std::string, std::string>>{
           {R"("input":"a","previous_response_id":"resp_x")", "previous_response_id"},
           {R"("input":"a","unheard_of":1)", "unheard_of"},
           {R"("input":"a","model":"other")", "model"},
           {R"("instructions":"a")", "input"}}) {
    const auto response = client.post("/v1/responses/input_tokens", "{" + fields + "}");
    EXPECT_TRUE(response.status == 400 || response.status == 404) << response.status;
    EXPECT_EQ(json::parse(response.body).at("error").at("param"), param);
  }
  EXPECT_EQ(fake.engine->requests(), before);
}

}  // namespace
}  // namespace tessera
