#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "server/base/memory_guard.h"
#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;
using testing::HasSubstr;

// Limits of a client: connections, bytes, time; and the clients that may ask at all.
class HttpLimits : public HttpFixture {
 protected:
  void start_with_answers(HttpOptions options = {}, RoutesOptions routes_options = {}) {
    fake.engine->answer_with([](const EngineRequest&) { return "Hello there."; });
    start(options, routes_options);
  }
};

TEST_F(HttpLimits, ClosesTheLongestIdleConnectionForANewOne) {
  start({.max_connections = 2});
  HttpClient first(port()), second(port());
  EXPECT_EQ(first.get("/version").status, 200);
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(second.get("/version").status, 200);
  std::this_thread::sleep_for(300ms);
  HttpClient third(port());
  EXPECT_EQ(third.get("/version").status, 200);
  EXPECT_TRUE(first.closed_by_server());
  EXPECT_EQ(second.get("/version").status, 200);
  EXPECT_EQ(listener->connections(), 2u);
}

TEST_F(HttpLimits, AnswersProbesWhenAllConnectionsAreBusy) {
  start({.max_connections = 2});
  HttpClient first(port()), second(port());
  first.send(print_post("/v1/completions", R"({"prompt":"a"})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  second.send(print_post("/v1/completions", R"({"prompt":"a"})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(2));
  HttpClient probe(port()), further(port());
  const auto health = probe.get("/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_TRUE(probe.closed_by_server());
  const auto refused = further.get("/version");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("too many connections"));
  HttpClient silent(port());
  EXPECT_TRUE(silent.closed_by_server()) << "within a second";
  fake.engine->finish(0, FinishReason::stop);
  EXPECT_EQ(first.read_response().status, 200);
}

// A long body is read in longer pieces and with pauses.
TEST_F(HttpLimits, ReadsALongBodyToItsLastByte) {
  start_with_answers();
  HttpClient client(port());
  const std::string body = R"({"prompt":"x",)" + std::string(5'000'000, ' ') + "!";
  ASSERT_TRUE(client.send(print_post("/v1/completions", body) +
                          "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  const auto refused = client.read_response();
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("error at byte 5000015 of 5000015"));
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt":"a"})").status, 200);
  for (int i = 0; i < 1000 && fake.budget.used() != 0; ++i) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(fake.budget.used(), 0U);
}

TEST_F(HttpLimits, ChecksTheKeyBeforeItReadsABody) {
  start_with_answers({}, {.api_keys = ApiKeys({"secret"})});
  HttpClient client(port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n{");
  EXPECT_EQ(client.read_response().status, 401);
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_EQ(fake.budget.used(), 0U);
  HttpClient waits(port());
  waits.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
      "Content-Length: 9\r\n\r\n");
  EXPECT_EQ(waits.read_response().status, 401) << "not told to continue";
  HttpClient probe(port());
  probe.send("GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n{");
  EXPECT_EQ(probe.read_response().status, 413);
  EXPECT_EQ(fake.budget.used(), 0U);
  HttpClient small(port());
  EXPECT_EQ(small.post("/v1/completions", R"({"prompt":"a"})").status, 401);
  EXPECT_EQ(
      small.post("/v1/completions", R"({"prompt":"a"})", "Authorization: Bearer secret\r\n").status,
      200)
      << "a short body is skipped, and the connection stays open";
}

TEST_F(HttpLimits, TakesRoomForABodyAndReturnsIt) {
  start_with_answers();
  HttpClient client(port());
  const std::string body = R"({"prompt":"a"})";
  const std::string request = print_post("/v1/completions", body);
  client.send(request.substr(0, request.size() - 1));
  for (int i = 0; i < 1000 && fake.budget.used() == 0; ++i) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(fake.budget.used(), body.size());
  client.send(request.substr(request.size() - 1));
  EXPECT_EQ(client.read_response().status, 200);
  for (int i = 0; i < 1000 && fake.budget.used() != 0; ++i) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(fake.budget.used(), 0U);
}

TEST_F(HttpLimits, WaitsForABodyAsLongAsItComesSteadily) {
  start_with_answers({.body_timeout = 500ms});
  const std::string body = R"({"prompt":"a)" + std::string(40 << 10, ' ') + R"("})";
  const std::string request = print_post("/v1/completions", body);
  HttpClient steady(port());
  for (std::size_t at = 0; at < request.size(); at += 4096) {
    steady.send(request.substr(at, 4096));
    std::this_thread::sleep_for(100ms);
  }
  EXPECT_EQ(steady.read_response().status, 200) << "after more than the timeout";
}

TEST_F(HttpLimits, RefusesABodyThatFindsNoRoom) {
  start_with_answers();
  auto others = fake.budget.take(fake.budget.bytes() - 100);
  HttpClient client(port());
  const auto refused = client.post("/v1/completions", std::string(100'000, ' '));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  HttpClient chunked(port());
  chunked.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(chunked.read_response().status, 503);
  others.reset();
  HttpClient again(port());
  EXPECT_EQ(again.post("/v1/completions", R"({"prompt":"a"})").status, 200);
}

TEST_F(HttpLimits, RefusesAnAnswerThatFindsNoRoomOrIsTooLarge) {
  start_with_answers();
  HttpClient client(port());
  const auto large =
      client.post("/v1/completions", R"({"prompt":"a","max_tokens":90000,"logprobs":20,"n":2})");
  EXPECT_EQ(large.status, 400);
  EXPECT_EQ(json::parse(large.body).at("error").at("param"), "n");
  auto others = fake.budget.take(fake.budget.bytes() - 1000);
  const std::string ask = R"({"prompt":"a","max_tokens":5000})";
  EXPECT_EQ(client.post("/v1/completions", ask).status, 503);
  EXPECT_EQ(fake.engine->requests(), 0U);
  others.reset();
  EXPECT_EQ(client.post("/v1/completions", ask).status, 200);
}

TEST_F(HttpLimits, AShortAnswerDoesNotWaitForLongTexts) {
  start_with_answers();
  std::promise<void> release;
  fake.pool.submit("", 1 << 20, [released = release.get_future().share()] { released.wait(); });
  HttpClient client(port());
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt":"a","max_tokens":50000})").status, 200)
      << "by its own length, not by its limit";
  release.set_value();
}

TEST_F(HttpLimits, CutsOffAClientThatDoesNotReadButNotASlowOne) {
  start({.write_timeout = 500ms});
  const auto ask = [](std::size_t letters) {
    return print_post("/tokenize", R"({"return_token_strs":true,"prompt":")" +
                                       std::string(letters, 'a') + R"("})");
  };
  const std::string end = R"("]})";
  HttpClient slow(port(), /*receive_bytes=*/16384);
  slow.send(ask(300'000));
  EXPECT_TRUE(slow.read_until("Content-Length"));
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < 1500ms) {
    EXPECT_TRUE(slow.read_some(16384));
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_TRUE(slow.read_until(end));
  HttpClient deaf(port(), 4096);
  deaf.send(ask(1'000'000));  // more than the system keeps
  EXPECT_TRUE(deaf.read_until("Content-Length"));
  std::this_thread::sleep_for(2s);
  EXPECT_FALSE(deaf.read_until(end));
}

TEST_F(HttpLimits, LetALoopbackServerWithoutKeysKnowItsOwnNamesOnly) {
  start_with_answers();
  HttpClient client(port());
  const auto ask = [&](const std::string& host, const std::string& headers) {
    const std::string body = R"({"prompt":"a"})";
    client.send("POST /v1/completions HTTP/1.1\r\nHost: " + host + "\r\n" + headers +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.read_response().status;
  };
  for (const char* own :
       {"localhost", "LOCALHOST:8080", "app.localhost", "127.0.0.1:8080", "[::1]"}) {
    EXPECT_EQ(ask(own, ""), 200) << own;
  }
  for (const char* other :
       {"evil.example", "localhost.evil.example", "127.evil.example", "10.0.0.1"}) {
    EXPECT_EQ(ask(other, ""), 403) << other;
  }
  EXPECT_EQ(ask("localhost", "Origin: http://localhost\r\n"), 200);
  EXPECT_EQ(ask("localhost:80", "Sec-Fetch-Site: same-origin\r\nOrigin: http://a\r\n"), 200);
  EXPECT_EQ(ask("localhost", "Origin: https://evil.example\r\n"), 403);
  EXPECT_EQ(ask("localhost", "Origin: null\r\n"), 403);
  EXPECT_EQ(ask("localhost", "Sec-Fetch-Site: same-site\r\n"), 403);
  EXPECT_EQ(client.get("/v1/models", "Sec-Fetch-Site: cross-site\r\n").status, 200)
      << "the page that asks cannot read it";
}

TEST_F(HttpLimits, KnowsTheNamesThatItIsGiven) {
  start_with_answers({}, {.allowed_hosts = "one.example,Two.example"});
  HttpClient client(port());
  EXPECT_EQ(client.get("/version").status, 403);
  client.send("GET /version HTTP/1.1\r\nHost: two.example:8080\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(HttpLimits, FreesABodyBeforeItsAnswer) {
  start();
  const std::string body = R"({"max_tokens":9,"prompt":[5)" + std::string(2U << 20U, ' ') + "]}";
  std::vector<std::unique_ptr<HttpClient>> clients;
  int64_t before = 0;
  for (std::size_t i = 1; i <= 16; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    clients.back()->send(print_post("/v1/completions", body));
    ASSERT_TRUE(fake.engine->wait_for_requests(i));
    before = i == 4 ? anonymous_memory() : before;  // with the memory that each request uses again
  }
  EXPECT_LT(anonymous_memory() - before, 12 << 20) << "24 MiB of bodies";
}

}  // namespace
}  // namespace tessera
