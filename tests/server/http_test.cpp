#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/escaping.h"
#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

class Http : public HttpFixture {
 protected:
  void start_with_answers(HttpOptions options = {}, RoutesOptions routes_options = {}) {
    fake.engine->answer_with([](const EngineRequest&) { return "Hello there."; });
    start(options, routes_options);
  }
};

TEST_F(Http, AnswersACompletion) {
  start_with_answers();
  HttpClient client(port());
  const auto response = client.post("/v1/completions", R"({"prompt":"Say","max_tokens":50})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  const json body = json::parse(response.body);
  EXPECT_THAT(body.at("id").get<std::string>(), testing::StartsWith("cmpl-"));
  EXPECT_EQ(body.at("model"), "fake");
  EXPECT_EQ(body.at("choices").at(0).at("text"), "Hello there.");
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), 4);
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 12);
}

TEST_F(Http, AnswersAChat) {
  start_with_answers();
  HttpClient client(port());
  const auto response = client.post("/v1/chat/completions",
                                    R"({"model":"fake","max_tokens":5,
                                        "messages":[{"role":"user","content":"hi"}]})");
  const json choice = json::parse(response.body).at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("content"), "Hello");
  EXPECT_EQ(choice.at("finish_reason"), "length");
}

TEST_F(Http, StopsAtAStopString) {
  start_with_answers();
  HttpClient client(port());
  const json body = json::parse(
      client.post("/v1/completions", R"({"prompt":"a","max_tokens":50,"stop":"o th"})").body);
  EXPECT_EQ(body.at("choices").at(0).at("text"), "Hell");
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 8);
}

TEST_F(Http, AnswersSeveralPromptsAndChoices) {
  fake.engine->answer_with([](const EngineRequest& request) {
    return std::string(1, static_cast<char>(request.prompt.back())) +
           std::to_string(request.sampling.seed);
  });
  start();
  HttpClient client(port());
  const json body =
      json::parse(client.post("/v1/completions", R"({"prompt":["a","b"],"n":2,"seed":7})").body);
  ASSERT_EQ(body.at("choices").size(), 4u);
  const char* const expected[] = {"a7", "a8", "b7", "b8"};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(body.at("choices").at(i).at("index"), i);
    EXPECT_EQ(body.at("choices").at(i).at("text"), expected[i]);
  }
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), 4) << "a prompt counts once";
}

TEST_F(Http, GivesEveryRequestItsOwnSeed) {
  start_with_answers();
  HttpClient client(port());
  client.post("/v1/completions", R"({"prompt":"a"})");
  client.post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_NE(fake.engine->request(0).sampling.seed, fake.engine->request(1).sampling.seed);
}

TEST_F(Http, ReportsLogprobs) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", R"({"prompt":"a","logprobs":1})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  EXPECT_EQ(fake.engine->request(0).sampling.top_logprobs, 1);
  const TokenLogprob top[] = {{'y', -0.25f}};
  fake.engine->emit(0, TokenLogprobs{.chosen = {'x', -1.5f}, .top = top});
  fake.engine->finish(0, FinishReason::stop);
  const json logprobs = json::parse(client.read_response().body)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs, json::parse(R"({"text_offset":[0],"token_logprobs":[-1.5],"tokens":["x"],
                                      "top_logprobs":[{"y":-0.25,"x":-1.5}]})"));
}

TEST_F(Http, RefusesAPromptLongerThanTheContextWithBothNumbers) {
  start();
  HttpClient client(port());
  const std::string longer(100'000, 'a');
  const auto response = client.post("/v1/completions", R"({"prompt":")" + longer + R"("})");
  EXPECT_EQ(response.status, 400);
  const json error = json::parse(response.body).at("error");
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
  EXPECT_EQ(error.at("param"), "prompt");
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  EXPECT_THAT(error.at("message").get<std::string>(),
              testing::AllOf(HasSubstr("100001 tokens"),
                             HasSubstr("maximum context length is 100000 tokens")));
  const auto chat = client.post("/v1/chat/completions",
                                R"({"messages":[{"role":"u","content":")" + longer + R"("}]})");
  EXPECT_EQ(json::parse(chat.body).at("error").at("param"), "messages");
  EXPECT_EQ(fake.engine->requests(), 0u);
}

TEST_F(Http, ADeterministicRequestHasTheSameSeedEachTime) {
  start_with_answers();
  HttpClient client(port());
  client.post("/v1/completions", R"({"prompt":"a","deterministic":true})");
  client.post("/v1/completions", R"({"prompt":"a","deterministic":true})");
  client.post("/v1/completions", R"({"prompt":"a","deterministic":true,"seed":7})");
  EXPECT_EQ(fake.engine->request(0).sampling.seed, fake.engine->request(1).sampling.seed);
  EXPECT_EQ(fake.engine->request(2).sampling.seed, 7u);
}

TEST_F(Http, AnAnswersIdHasTheClientsName) {
  start_with_answers();
  HttpClient client(port());
  const auto response = client.post("/v1/completions", R"({"prompt":"a","request_id":"my-1"})");
  EXPECT_EQ(json::parse(response.body).at("id"), "cmpl-my-1");
}

TEST_F(Http, TokenizesAsLlamaServerDoes) {
  start();
  HttpClient client(port());
  EXPECT_EQ(json::parse(client.post("/tokenize", R"({"content":"<s>i"})").body).at("tokens"),
            json::parse("[256,105]"));
  EXPECT_EQ(json::parse(client
                            .post("/tokenize", R"({"content":"<s>","add_special":true,
                                                   "parse_special":false})")
                            .body)
                .at("tokens"),
            json::parse("[256,60,115,62]"));
}

TEST_F(Http, ShowsTokensWithTheirPieces) {
  start();
  HttpClient client(port());
  const auto body = R"({"content":"<s>\"é","with_pieces":true})";
  EXPECT_EQ(json::parse(client.post("/tokenize", body).body).at("tokens"),
            json::parse(R"([{"id":256,"piece":"<s>"},{"id":34,"piece":"\""},
                            {"id":195,"piece":[195]},{"id":169,"piece":[169]}])"))
      << "bytes of a character are a list";
  EXPECT_EQ(
      client.post("/tokenize", R"({"prompt":"a","with_pieces":true,"return_token_strs":true})")
          .status,
      400);
}

TEST_F(Http, TokenizesAndDetokenizes) {
  start();
  HttpClient client(port());
  EXPECT_EQ(json::parse(client.post("/tokenize", R"({"prompt":"hi"})").body),
            json::parse(R"({"count":3,"max_model_len":100000,"tokens":[256,104,105],
                            "token_strs":null})"));
  EXPECT_EQ(json::parse(client
                            .post("/tokenize", R"({"prompt":"hi","add_special_tokens":false,
                                                     "return_token_strs":true})")
                            .body)
                .at("token_strs"),
            json::parse(R"(["h","i"])"));
  EXPECT_EQ(json::parse(client.post("/detokenize", R"({"tokens":[256,104,105]})").body),
            json::parse(R"({"prompt":"<s>hi","content":"<s>hi"})"));
  EXPECT_EQ(client.post("/detokenize", R"({"tokens":[999]})").status, 400);
}

TEST_F(Http, ServesWhatIsNotGeneration) {
  start();
  HttpClient client(port());
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(json::parse(client.get("/version").body).at("version"), TESSERA_VERSION);
  EXPECT_EQ(json::parse(client.get("/v1/models").body).at("data").at(0).at("id"), "fake");
  EXPECT_EQ(json::parse(client.get("/v1/models/fake").body).at("id"), "fake");
  EXPECT_EQ(client.get("/v1/models/other").status, 404);
  EXPECT_EQ(json::parse(client.get("/v1/cache").body).at("object"), "cache");
  EXPECT_EQ(fake.engine->flushes(), 0);
  EXPECT_EQ(client.post("/v1/cache/flush", "").status, 200);
  EXPECT_EQ(fake.engine->flushes(), 1);
  const auto metrics = client.get("/metrics");
  EXPECT_EQ(metrics.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(metrics.body, HasSubstr("vllm:num_requests_waiting{model_name=\"fake\"} 3"));
  const auto page = client.get("/");
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(page.body, HasSubstr("<html"));
  const std::string& policy = page.headers.at("content-security-policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_EQ(client.get("/favicon.ico").headers.at("content-type"), "image/svg+xml");
}

TEST_F(Http, ThePolicyNamesTheHashesOfThePagesScriptAndStyle) {
  start();
  const auto page = HttpClient(port()).get("/");
  const std::string& policy = page.headers.at("content-security-policy");
  const auto hash = [&](std::string_view from, std::string_view to) {
    const size_t begin = page.body.find(from) + from.size();
    const std::string text = page.body.substr(begin, page.body.find(to) - begin);
    unsigned char sum[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), sum);
    return "'sha256-" +
           absl::Base64Escape(std::string(reinterpret_cast<const char*>(sum), sizeof(sum))) + "'";
  };
  EXPECT_THAT(policy, HasSubstr("script-src " + hash("<script type=\"module\">", "</script>")));
  EXPECT_THAT(policy, HasSubstr("style-src " + hash("<style>", "</style>")));
}

TEST_F(Http, RefusesUnknownPathsMethodsAndModels) {
  start();
  HttpClient client(port());
  EXPECT_EQ(client.get("/v2/nothing").status, 404);
  EXPECT_EQ(client.get("/v1/models/").status, 404);
  const auto method = client.get("/v1/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
  const auto post = client.post("/health", "{}");
  EXPECT_EQ(post.status, 405);
  EXPECT_EQ(post.headers.at("allow"), "GET, HEAD");
  const auto model = client.post("/v1/completions", R"({"prompt":"a","model":"gpt-4"})");
  EXPECT_EQ(model.status, 404);
  const json error = json::parse(model.body).at("error");
  EXPECT_EQ(error.at("code"), "model_not_found");
  EXPECT_EQ(error.at("param"), "model");
  EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("this server has 'fake'"));
}

TEST_F(Http, ReportsErrorsInOpenAisShape) {
  start({}, {.max_choices = 4});
  HttpClient client(port());
  const auto bad = client.post("/v1/completions", R"({"prompt":"a","temperature":"hot"})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(json::parse(bad.body).at("error").at("param"), "temperature");
  EXPECT_EQ(json::parse(client.post("/v1/completions", R"({"prompt":"a","n":5})").body)
                .at("error")
                .at("param"),
            "n");
  EXPECT_EQ(
      client.post("/v1/chat/completions", R"({"messages":[{"role":"villain","content":"x"}]})")
          .status,
      400);
  fake.engine->refuse_with(absl::InvalidArgumentError("the prompt has 9 tokens, context is 8"));
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt":"a"})").status, 400);
  fake.engine->refuse_with(absl::ResourceExhaustedError("the queue is full"));
  const auto full = client.post("/v1/completions", R"({"prompt":"a","stream":true})");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.headers.at("retry-after"), "1");
  EXPECT_EQ(json::parse(full.body).at("error").at("type"), "rate_limit_error");
}

TEST_F(Http, ReportsAnEngineThatFails) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", R"({"prompt":"a"})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->emit(0, "half");
  fake.engine->finish(0, FinishReason::failed, absl::InternalError("out of luck"));
  const auto response = client.read_response();
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(json::parse(response.body).at("error").at("message"), "out of luck");
}

TEST_F(Http, CancelsTheOtherChoicesWhenOneIsRefused) {
  start();
  fake.engine->refuse_after(1, absl::ResourceExhaustedError("the queue is full"));
  HttpClient client(port());
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt":["a","b"]})").status, 429);
  EXPECT_TRUE(fake.engine->wait_for_cancel(0));
}

TEST_F(Http, WantsAKeyWhereOneIsSet) {
  start_with_answers({}, {.api_keys = ApiKeys({"secret-1", "Secret-2"})});
  HttpClient client(port());
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(client.get("/metrics").status, 200);
  EXPECT_EQ(client.get("/version").status, 401);
  EXPECT_EQ(client.get("/v1/cache").status, 401);
  EXPECT_EQ(client.post("/v1/cache/flush", "").status, 401);
  const auto none = client.get("/v1/models");
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(json::parse(none.body).at("error").at("code"), "invalid_api_key");
  for (const char* wrong : {"secret-", "secret-11", "SECRET-1", "", "secret-2", "x"}) {
    EXPECT_EQ(
        client.get("/v1/models", "Authorization: Bearer " + std::string(wrong) + "\r\n").status,
        401)
        << wrong;
  }
  EXPECT_EQ(client.get("/v1/models", "Authorization: secret-1\r\n").status, 401);
  for (const char* right : {"secret-1", "Secret-2"}) {
    EXPECT_EQ(
        client.get("/v1/models", "Authorization: Bearer " + std::string(right) + "\r\n").status,
        200);
  }
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt":"a"})").status, 401);
  EXPECT_EQ(client.get("/nothing").status, 401) << "does not reveal which paths exist";
}

TEST_F(Http, ABrowserIsAskedForAKeyAtThePageAndShowsItWithThePagesRequests) {
  start_with_answers({}, {.api_keys = ApiKeys({"secret"})});
  HttpClient client(port());
  const auto page = client.get("/");
  EXPECT_EQ(page.status, 401);
  EXPECT_THAT(page.headers.at("www-authenticate"), testing::StartsWith("Basic realm="));
  EXPECT_THAT(page.body, HasSubstr("as the password"));
  const std::string right = "Authorization: Basic " + absl::Base64Escape("me:secret") + "\r\n";
  const std::string wrong = "Authorization: Basic " + absl::Base64Escape("secret:me") + "\r\n";
  EXPECT_EQ(client.get("/", wrong).status, 401);
  EXPECT_EQ(client.get("/", "Authorization: Basic !!\r\n").status, 401);
  EXPECT_THAT(client.get("/", right).body, HasSubstr("<html"));
  EXPECT_EQ(client.get("/", right + "Sec-Fetch-Site: cross-site\r\n").status, 200) << "a link";
  EXPECT_EQ(client.get("/v1/models", right).status, 200);
  EXPECT_EQ(client.get("/v1/models", right + "Sec-Fetch-Site: same-origin\r\n").status, 200);
  const std::string ask = R"({"prompt":"a"})";
  for (const char* elsewhere : {"cross-site", "same-site"}) {
    const std::string site = "Sec-Fetch-Site: " + std::string(elsewhere) + "\r\n";
    EXPECT_EQ(client.post("/v1/completions", ask, right + site).status, 401)
        << "a page from elsewhere uses the browser's stored key";
    EXPECT_EQ(client.post("/v1/completions", ask, "Authorization: Bearer secret\r\n" + site).status,
              200)
        << "it has a key of its own";
  }
}

TEST_F(Http, AllowsPagesOfOneOriginWhenAsked) {
  start_with_answers({}, {.cors_origin = "https://a.example"});
  HttpClient client(port());
  EXPECT_EQ(client.get("/v1/models").headers.at("access-control-allow-origin"),
            "https://a.example");
  client.send("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto preflight = client.read_response();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_THAT(preflight.headers.at("access-control-allow-headers"), HasSubstr("Authorization"));
  client.send(
      "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n"
      "Access-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n");
  EXPECT_EQ(client.read_response().headers.at("access-control-allow-headers"),
            "authorization,x-stainless-os");
  const auto answer = client.post("/v1/completions", R"({"prompt":"a","stream":true})");
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://a.example");
}

TEST_F(Http, SaysNothingToOtherOriginsOtherwise) {
  start();
  HttpClient client(port());
  EXPECT_FALSE(client.get("/v1/models").headers.contains("access-control-allow-origin"));
  client.send("OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 405);
}

TEST_F(Http, IsUnavailableWhileTheModelLoads) {
  routes = std::make_unique<Routes>(RoutesOptions());
  auto started = HttpListener::start({.port = 0}, *routes, fake.work);
  ASSERT_TRUE(started.ok());
  listener = *std::move(started);
  HttpClient client(port());
  EXPECT_EQ(client.get("/health").status, 503);
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt":"a"})").status, 503);
  EXPECT_EQ(client.get("/version").status, 200);
  routes->attach(*fake.service);
  EXPECT_EQ(client.get("/health").status, 200);
}

TEST_F(Http, KeepsConnectionsOpenAndAnswersInOrder) {
  start_with_answers();
  HttpClient client(port());
  std::string requests;
  for (int i = 0; i < 20; ++i) {
    requests += i % 2 == 0 ? print_get("/version")
                           : print_post("/v1/completions", R"({"prompt":"a","stream":true})");
  }
  ASSERT_TRUE(client.send(requests));
  for (int i = 0; i < 20; ++i) {
    const auto response = client.read_response();
    ASSERT_TRUE(response.complete) << i;
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.headers.at("connection"), "keep-alive");
    EXPECT_THAT(response.body, HasSubstr(i % 2 == 0 ? "version" : "[DONE]"));
  }
}

TEST_F(Http, ClosesWhenTheClientWantsIt) {
  start_with_answers();
  HttpClient client(port());
  EXPECT_EQ(client.get("/version", "Connection: close\r\n").headers.at("connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
  HttpClient old(port());
  old.send("GET /version HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read_response().status, 200);
  EXPECT_TRUE(old.closed_by_server());
}

TEST_F(Http, AnswersWhatWasSentBeforeTheClientFinishedSending) {
  start();
  HttpClient client(port());
  client.send(print_get("/version") + print_get("/health"));
  client.finish_sending();
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(Http, AnswersHeadWithoutABody) {
  start();
  HttpClient client(port());
  client.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto head = client.read_response(/*head_only=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.headers.at("content-length"), "0");
  EXPECT_EQ(client.get("/version").status, 200) << "nothing of a body came";
}

TEST_F(Http, ToldToContinueTheClientSendsItsBody) {
  start_with_answers();
  HttpClient client(port());
  const std::string body = R"({"prompt":"a"})";
  const std::string request = print_post("/v1/completions", body, "Expect: 100-continue\r\n");
  client.send(request.substr(0, request.size() - body.size()));
  EXPECT_EQ(client.read_response(/*head_only=*/true).status, 100);
  client.send(body);
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(Http, RefusesWhatIsTooLargeSoThatTheClientReadsIt) {
  start({.header_bytes = 1024, .body_bytes = 4096});
  HttpClient large_body(port());
  large_body.send(print_post("/v1/completions", std::string(1 << 20, ' ')));
  const auto too_large = large_body.read_response();
  EXPECT_EQ(too_large.status, 413);
  EXPECT_THAT(json::parse(too_large.body).at("error").at("message").get<std::string>(),
              HasSubstr("4096"));
  EXPECT_TRUE(large_body.closed_by_server());
  HttpClient large_head(port());
  large_head.send(print_get("/health", "X: " + std::string(100'000, 'x') + "\r\n"));
  EXPECT_EQ(large_head.read_response().status, 431);
}

TEST_F(Http, RefusesWhatIsNoHttp) {
  start();
  HttpClient client(port());
  client.send("hello, server\r\n\r\n");
  const auto response = client.read_response();
  EXPECT_EQ(response.status, 400);
  EXPECT_TRUE(json::parse(response.body).contains("error"));
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(Http, DoesNotWaitForeverForARequest) {
  start({.idle_timeout = 100ms, .header_timeout = 100ms, .body_timeout = 100ms});
  HttpClient idle(port());
  EXPECT_TRUE(idle.closed_by_server());
  HttpClient slow_head(port());
  slow_head.send("GET /health HT");
  EXPECT_EQ(slow_head.read_response().status, 408);
  HttpClient slow_body(port());
  slow_body.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{");
  EXPECT_EQ(slow_body.read_response().status, 408);
  EXPECT_TRUE(slow_body.closed_by_server());
}

TEST(HttpListener, NamesWhatItCannotListenOn) {
  FakeService fake;
  Routes routes({});
  const auto address =
      HttpListener::start({.address = "nowhere.example", .port = 0}, routes, fake.work);
  EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(address.status().message(), HasSubstr("nowhere.example"));
  const auto first = HttpListener::start({.port = 0}, routes, fake.work);
  ASSERT_TRUE(first.ok());
  const auto second = HttpListener::start({.port = (*first)->port()}, routes, fake.work);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string((*first)->port())));
  const auto tls =
      HttpListener::start({.port = 0, .tls_certificate = "/nowhere.pem"}, routes, fake.work);
  EXPECT_EQ(tls.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(tls.status().message(), HasSubstr("/nowhere.pem"));
}

}  // namespace
}  // namespace tessera
