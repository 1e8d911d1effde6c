#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/server/http_fixture.h"

// Echoed prompts, log probabilities, and the choice of the best completions by them (best_of).
namespace tessera {
namespace {

using nlohmann::json;

class HttpScoring : public HttpFixture {};

// Acts as the engine: reports each prompt token but the first with log probability -i, beside the
// token 'T' with -0.5 - i.
void report_prompt(FakeEngine& engine, RequestId id) {
  const std::vector<int32_t> prompt = engine.request(id).prompt;
  for (std::size_t i = 1; i < prompt.size(); ++i) {
    const auto at = static_cast<float>(i);
    const TokenLogprob top[] = {{prompt[i], -at}, {'T', -0.5f - at}};
    engine.emit_prompt(id, TokenLogprobs{.chosen = {prompt[i], -at}, .top = top, .rank = 7});
  }
}

TEST_F(HttpScoring, EchoesAPromptWithItsLogprobsAsHarnessesScoreIt) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions",
                         R"({"prompt":[[256,97,98],[99]],"max_tokens":1,"logprobs":1,"echo":true,
                             "temperature":0,"seed":1234})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(2));
  for (RequestId id = 0; id < 2; ++id) {
    EXPECT_EQ(fake.engine->request(id).sampling.prompt_logprobs, 1);
    EXPECT_EQ(fake.engine->request(id).sampling.top_logprobs, 1);
    EXPECT_TRUE(fake.engine->request(id).ignore_eos) << "one token more than the prompt, always";
    report_prompt(*fake.engine, id);
    fake.engine->emit(id, TokenLogprobs{.chosen = {'x', -9}, .top = {}});
    fake.engine->finish(id, FinishReason::length);
  }
  const json choices = json::parse(client.read_response().body).at("choices");
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].at("text"), "abx");
  EXPECT_EQ(choices[0].at("logprobs"),
            json::parse(R"({"tokens":["","a","b","x"],"text_offset":[0,0,1,2],
                            "token_logprobs":[null,-1.0,-2.0,-9.0],
                            "top_logprobs":[null,{"a":-1.0},{"b":-2.0},{"x":-9.0}]})"));
  EXPECT_EQ(choices[1].at("text"), "cx");
  EXPECT_EQ(choices[1].at("logprobs").at("token_logprobs"), json::parse("[null,-9.0]"));
}

TEST_F(HttpScoring, EchoesTheTextOfAPromptAndReadsItOnly) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions",
                         R"({"prompt":"h\u00e9","max_tokens":0,"logprobs":0,"echo":true})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  EXPECT_EQ(fake.engine->request(0).max_tokens, 0);
  report_prompt(*fake.engine, 0);
  fake.engine->finish(0, FinishReason::length);
  const json body = json::parse(client.read_response().body);
  const json choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "h\u00e9");
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_EQ(choice.at("logprobs").at("tokens"),
            json::parse(R"(["","h","bytes:\\xc3","bytes:\\xa9"])"));
  EXPECT_EQ(choice.at("logprobs").at("text_offset"), json::parse("[0,0,1,1]"));
  EXPECT_EQ(choice.at("logprobs").at("top_logprobs").at(1), json::parse(R"({"h":-1.0})"));
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 0);
}

TEST_F(HttpScoring, StreamsAnEchoBeforeTheCompletion) {
  start();
  HttpClient client(port());
  client.send(
      print_post("/v1/completions", R"({"prompt":"ab","echo":true,"logprobs":1,"stream":true})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  report_prompt(*fake.engine, 0);
  fake.engine->emit(0, TokenLogprobs{.chosen = {'x', -9}, .top = {}});
  ASSERT_TRUE(client.read_until("\"abx\""));
  fake.engine->emit(0, TokenLogprobs{.chosen = {'y', -8}, .top = {}});
  fake.engine->finish(0, FinishReason::length);
  const auto events = events_of(client.read_response().body);
  const json first = json::parse(events.at(0)).at("choices").at(0);
  EXPECT_EQ(first.at("text"), "abx");
  EXPECT_EQ(first.at("logprobs").at("token_logprobs"), json::parse("[null,-1.0,-2.0,-9.0]"));
  const json second = json::parse(events.at(1)).at("choices").at(0);
  EXPECT_EQ(second.at("text"), "y");
  EXPECT_EQ(second.at("logprobs").at("text_offset"), json::parse("[3]"));
}

TEST_F(HttpScoring, ReportsPromptLogprobsInVllmsShape) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", R"({"prompt":"a","prompt_logprobs":2})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  EXPECT_EQ(fake.engine->request(0).sampling.prompt_logprobs, 2);
  report_prompt(*fake.engine, 0);
  fake.engine->finish(0, FinishReason::stop);
  const json choice = json::parse(client.read_response().body).at("choices").at(0);
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(choice.at("prompt_logprobs"), json::parse(R"([null,{
      "97":{"logprob":-1.0,"rank":1,"decoded_token":"a"},
      "84":{"logprob":-1.5,"rank":2,"decoded_token":"T"}}])"));
  HttpClient chat(port());
  chat.send(print_post("/v1/chat/completions",
                       R"({"messages":[{"role":"u","content":"x"}],"prompt_logprobs":0})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(2));
  report_prompt(*fake.engine, 1);
  fake.engine->finish(1, FinishReason::stop);
  const json list = json::parse(chat.read_response().body).at("prompt_logprobs");
  EXPECT_EQ(list.size(), fake.engine->request(1).prompt.size());
  EXPECT_EQ(list.at(1), json::parse(R"({"91":{"logprob":-1.0,"rank":7,"decoded_token":"["}})"));
}

TEST_F(HttpScoring, ShowsTokensAsIdsWhenAsked) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions",
                         R"({"prompt":"a","logprobs":0,"return_tokens_as_token_ids":true})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->emit(0, TokenLogprobs{.chosen = {'x', -1}, .top = {}});
  fake.engine->finish(0, FinishReason::stop);
  const json choice = json::parse(client.read_response().body).at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "x");
  EXPECT_EQ(choice.at("logprobs").at("tokens"), json::parse(R"(["token_id:120"])"));
}

TEST_F(HttpScoring, AnswersTheLikeliestOfTheBest) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", R"({"prompt":"a","n":2,"best_of":3,"seed":5})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(3));
  const float logprobs[] = {-2, -3, -1};
  for (RequestId id = 0; id < 3; ++id) {
    EXPECT_EQ(fake.engine->request(id).sampling.seed, 5 + id);
    const auto token = static_cast<int32_t>('x' + id);
    fake.engine->emit(id, TokenLogprobs{.chosen = {token, logprobs[id]}, .top = {}});
    fake.engine->finish(id, FinishReason::stop);
  }
  const json body = json::parse(client.read_response().body);
  ASSERT_EQ(body.at("choices").size(), 2u);
  EXPECT_EQ(body.at("choices").at(0).at("text"), "z");
  EXPECT_EQ(body.at("choices").at(0).at("index"), 0);
  EXPECT_TRUE(body.at("choices").at(0).at("logprobs").is_null());
  EXPECT_EQ(body.at("choices").at(1).at("text"), "x");
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 3) << "generated tokens count";
}

}  // namespace
}  // namespace tessera
