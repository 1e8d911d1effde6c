#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr const char* kStream = R"({"prompt":"a","max_tokens":1000,"stream":true})";
constexpr const char* kWhole = R"({"prompt":"a","max_tokens":1000})";

std::string text_of(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) {
    if (event != "[DONE]") {
      const json chunk = json::parse(event);
      for (const json& choice : chunk.at("choices")) {
        text += choice.value("text", choice.value("delta", json::object()).value("content", ""));
      }
    }
  }
  return text;
}

class HttpStream : public HttpFixture {
 protected:
  void start_with_answer(const std::string& answer, HttpOptions options = {}) {
    fake.engine->answer_with([answer](const EngineRequest&) { return answer; });
    start(options);
  }
};

TEST_F(HttpStream, SendsTokensAsTheyComeAndEndsWithDone) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", kStream));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->emit(0, "x");
  ASSERT_TRUE(client.read_until("\"text\":\"x\""));
  fake.engine->emit(0, "yz");
  ASSERT_TRUE(client.read_until("\"text\":\"z\""));
  fake.engine->finish(0, FinishReason::stop);
  const auto response = client.read_response();
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(response.headers.at("cache-control"), "no-cache");
  const auto events = events_of(response.body);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(text_of(events), "xyz");
  EXPECT_EQ(json::parse(events[3]).at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(events[4], "[DONE]");
}

// Clients and proxies give up after 20 s without a byte.
TEST_F(HttpStream, SendsPingsBeforeItsFirstTokenAndInPauses) {
  start({.ping_interval = 30ms});
  HttpClient client(port());
  client.send(print_post("/v1/completions", R"({"prompt":"a","stream":true,"stop":"END"})"));
  ASSERT_TRUE(client.read_until("\r\n\r\n"));
  ASSERT_TRUE(client.read_until(": ping\n\n"));
  fake.engine->emit(0, "xE");
  ASSERT_TRUE(client.read_until("\"text\":\"x\""));
  fake.engine->emit(0, "N");  // may be the stop string, so that nothing is printed
  std::this_thread::sleep_for(150ms);
  fake.engine->finish(0, FinishReason::stop);
  const auto response = client.read_response();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const auto events = events_of(response.body);
  EXPECT_EQ(text_of(events), "xEN");
  EXPECT_THAT(response.body, testing::StartsWith(": ping\n\n"));
  EXPECT_THAT(response.body.substr(response.body.find("\"x\"")), HasSubstr("\n\n: ping\n\n"));
}

TEST_F(HttpStream, ReportsAFailureAfterAPingAsAnEventAndOneBeforeAsAStatus) {
  start({.ping_interval = 50ms});
  HttpClient client(port());
  client.send(print_post("/v1/completions", kStream));
  ASSERT_TRUE(client.read_until(": ping"));
  fake.engine->finish(0, FinishReason::failed, absl::ResourceExhaustedError("waited too long"));
  const auto events = events_of(client.read_response().body);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(json::parse(events[0]).at("error").at("message"), "waited too long");
  client.send(print_post("/v1/completions", kStream));
  ASSERT_TRUE(fake.engine->wait_for_requests(2));
  fake.engine->finish(1, FinishReason::failed, absl::ResourceExhaustedError("waited too long"));
  EXPECT_EQ(client.read_response().status, 429);
}

TEST_F(HttpStream, AWholeAnswerHasNoPings) {
  start({.ping_interval = 10ms});
  HttpClient client(port());
  client.send(print_post("/v1/completions", kWhole));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  std::this_thread::sleep_for(100ms);
  fake.engine->finish(0, FinishReason::stop);
  EXPECT_EQ(json::parse(client.read_response().body).at("choices").at(0).at("text"), "");
}

TEST_F(HttpStream, AClientThatLeavesBetweenPingsIsNoticed) {
  start({.ping_interval = 20ms});
  HttpClient client(port());
  client.send(print_post("/v1/completions", kStream));
  ASSERT_TRUE(client.read_until(": ping"));
  client.close();
  EXPECT_TRUE(fake.engine->wait_for_cancel(0));
}

TEST_F(HttpStream, TellsTheUsageLastWhenAsked) {
  start_with_answer("Hello");
  HttpClient client(port());
  const auto response = client.post("/v1/chat/completions",
                                    R"({"messages":[{"role":"user","content":"hi"}],"stream":true,
          "stream_options":{"include_usage":true}})");
  const auto events = events_of(response.body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(text_of(events), "Hello");
  const json first = json::parse(events[0]);
  EXPECT_EQ(first.at("choices").at(0).at("delta"),
            json::parse(R"({"role":"assistant","content":"H"})"));
  EXPECT_TRUE(first.at("usage").is_null());
  const json last = json::parse(events[events.size() - 2]);
  EXPECT_EQ(last.at("choices"), json::array());
  EXPECT_EQ(last.at("usage").at("completion_tokens"), 5);
  EXPECT_GT(last.at("usage").at("prompt_tokens"), 0);
}

TEST_F(HttpStream, TellsTheUsageAllTheTimeWhenAsked) {
  start_with_answer("Hey");
  HttpClient client(port());
  const auto response = client.post(
      "/v1/completions",
      R"({"prompt":"a","stream":true,"stream_options":{"continuous_usage_stats":true}})");
  const auto events = events_of(response.body);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(json::parse(events[1]).at("usage").at("completion_tokens"), 2);
}

TEST_F(HttpStream, NeverSplitsACharacter) {
  const std::string answer = "5 \xe2\x82\xac and \xf0\x9f\x8d\x8e!";
  start_with_answer(answer);
  HttpClient client(port());
  const auto events = events_of(client.post("/v1/completions", kStream).body);
  EXPECT_EQ(text_of(events), answer);
  for (const std::string& event : events) {
    EXPECT_THAT(event, testing::Not(HasSubstr("\xef\xbf\xbd")));
  }
}

TEST_F(HttpStream, StopsAtAStopStringAndCancels) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions",
                         R"({"prompt":"a","max_tokens":99,"stream":true,"stop":["END"]})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->emit(0, "some E");
  fake.engine->emit(0, "ND more");
  EXPECT_TRUE(fake.engine->wait_for_cancel(0));
  const auto response = client.read_response();
  EXPECT_TRUE(response.complete) << "without waiting for the engine";
  const auto events = events_of(response.body);
  EXPECT_EQ(text_of(events), "some ");
  EXPECT_EQ(json::parse(events[events.size() - 2]).at("choices").at(0).at("finish_reason"), "stop");
  fake.engine->finish(0, FinishReason::cancelled);
}

TEST_F(HttpStream, ReportsAFailureAsAnEvent) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", kStream));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->emit(0, "x");
  fake.engine->finish(0, FinishReason::failed, absl::InternalError("out of luck"));
  const auto response = client.read_response();
  EXPECT_TRUE(response.complete);
  const auto events = events_of(response.body);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(json::parse(events[1]).at("error").at("message"), "out of luck");
  EXPECT_EQ(events[2], "[DONE]");
}

TEST_F(HttpStream, EndsWithTheConnectionInHttp10) {
  start_with_answer("Hello");
  HttpClient client(port());
  const std::string body = kStream;
  client.send("POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const auto response = client.read_response();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_EQ(response.headers.at("connection"), "close");
  EXPECT_EQ(text_of(events_of(response.body)), "Hello");
}

// A client that disconnects, at any stage and in any way, cancels its request.
struct Departure {
  const char* body;
  bool after_a_token;
  void (*leave)(HttpClient&);
};

class ClientThatLeaves : public HttpStream, public testing::WithParamInterface<Departure> {};

TEST_P(ClientThatLeaves, IsNoticedAtOnce) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", GetParam().body));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  if (GetParam().after_a_token) {
    fake.engine->emit(0, "x");
  }
  EXPECT_FALSE(fake.engine->cancelled(0));
  GetParam().leave(client);
  EXPECT_TRUE(fake.engine->wait_for_cancel(0));
  fake.engine->emit(0, "late");  // a step may be running
  fake.engine->finish(0, FinishReason::cancelled);
  EXPECT_TRUE(listener->drain(10s));
}

INSTANTIATE_TEST_SUITE_P(
    Anywhere, ClientThatLeaves,
    testing::Values(Departure{kStream, false, [](HttpClient& c) { c.close(); }},
                    Departure{kStream, false, [](HttpClient& c) { c.reset(); }},
                    Departure{kStream, true, [](HttpClient& c) { c.close(); }},
                    Departure{kStream, true, [](HttpClient& c) { c.reset(); }},
                    Departure{kStream, true, [](HttpClient& c) { c.finish_sending(); }},
                    Departure{kWhole, false, [](HttpClient& c) { c.close(); }},
                    Departure{kWhole, false, [](HttpClient& c) { c.reset(); }},
                    Departure{kWhole, true, [](HttpClient& c) { c.close(); }},
                    Departure{kWhole, true, [](HttpClient& c) { c.reset(); }}));

TEST_F(HttpStream, ALeavingClientIsNoticedBehindRequestsSentAhead) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", kStream) + print_get("/version") +
              print_get("/version"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  client.reset();
  EXPECT_TRUE(fake.engine->wait_for_cancel(0));
}

TEST_F(HttpStream, AllChoicesOfALeavingClientAreCancelled) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", R"({"prompt":["a","b"],"n":2,"stream":true})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(4));
  fake.engine->finish(1, FinishReason::stop);
  ASSERT_TRUE(client.read_until("finish_reason\":\"stop\""));
  client.close();
  for (const RequestId id : {0u, 2u, 3u}) {
    EXPECT_TRUE(fake.engine->wait_for_cancel(id));
  }
  EXPECT_FALSE(fake.engine->cancelled(1)) << "it had ended";
}

TEST_F(HttpStream, AClientThatDoesNotReadIsDisconnectedAndDelaysNoOther) {
  start_with_answer(std::string(90'000, 'x'), {.threads = 1, .write_timeout = 200ms});
  HttpClient deaf(port(), /*receive_bytes=*/4096);
  deaf.send(print_post("/v1/completions", R"({"prompt":"a","max_tokens":90000,"stream":true})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  HttpClient other(port());
  const auto response = other.post("/v1/completions", R"({"prompt":"b","stream":true})");
  EXPECT_EQ(text_of(events_of(response.body)), std::string(16, 'x'));
  other.close();
  for (int i = 0; i < 1000 && listener->connections() > 0; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(listener->connections(), 0u);
  EXPECT_TRUE(deaf.closed_by_server());
}

TEST_F(HttpStream, AClientThatLagsTakesRoomAndIsCutOffWhenThereIsNone) {
  start();
  HttpClient slow(port(), /*receive_bytes=*/4096);
  slow.send(print_post("/v1/completions", R"({"prompt":"a","max_tokens":90000,"stream":true})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->emit(0, "x");
  ASSERT_TRUE(slow.read_until("\r\n\r\n"));
  const std::size_t before = fake.budget.used();
  int emitted = 0;
  for (; fake.budget.used() == before && emitted < 10'000'000; ++emitted) {
    fake.engine->emit(0, "x");
  }
  ASSERT_GT(fake.budget.used(), before) << "after " << emitted << " tokens";
  auto others = fake.budget.take(fake.budget.bytes() - fake.budget.used());
  for (; !fake.engine->cancelled(0) && emitted < 20'000'000; ++emitted) {
    fake.engine->emit(0, "x");
  }
  ASSERT_TRUE(fake.engine->cancelled(0)) << "after " << emitted << " tokens";
  fake.engine->finish(0, FinishReason::cancelled);
  const auto events = events_of(slow.read_response().body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_THAT(events[events.size() - 2], HasSubstr("too slowly"));
  EXPECT_EQ(events.back(), "[DONE]");
  for (int i = 0; i < 1000 && fake.budget.used() > others->bytes(); ++i) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(fake.budget.used(), others->bytes());
}

TEST_F(HttpStream, ManyAtOnceAreNotInterleaved) {
  constexpr int kClients = 64;
  fake.engine->answer_with([](const EngineRequest& request) {
    std::string answer;  // repeats the prompt, which identifies its client
    for (int i = 0; i < 50; ++i) {
      for (std::size_t k = 1; k < request.prompt.size(); ++k) {
        answer += static_cast<char>(request.prompt[k]);
      }
    }
    return answer;
  });
  start();
  std::vector<std::string> texts(kClients);
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      HttpClient client(port());
      for (int round = 0; round < 3; ++round) {
        const auto response =
            client.post("/v1/completions", R"({"prompt":"<)" + std::to_string(i) +
                                               R"(>","max_tokens":1000,"stream":true})");
        texts[static_cast<std::size_t>(i)] +=
            response.complete ? text_of(events_of(response.body)) : "incomplete";
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int i = 0; i < kClients; ++i) {
    std::string expected;
    for (int n = 0; n < 150; ++n) {
      expected += "<" + std::to_string(i) + ">";
    }
    EXPECT_EQ(texts[static_cast<std::size_t>(i)], expected);
  }
}

TEST_F(HttpStream, TellsAllChoicesApartByTheirIndex) {
  fake.engine->answer_with([](const EngineRequest& request) {
    return std::string(20, static_cast<char>(request.prompt.back()));
  });
  start();
  HttpClient client(port());
  const auto response =
      client.post("/v1/completions", R"({"prompt":["a","b","c"],"stream":true,"max_tokens":30})");
  std::map<int, std::string> texts;
  for (const std::string& event : events_of(response.body)) {
    if (event != "[DONE]") {
      const json choice = json::parse(event).at("choices").at(0);
      texts[choice.at("index").get<int>()] += choice.at("text").get<std::string>();
    }
  }
  EXPECT_THAT(texts, testing::ElementsAre(testing::Pair(0, std::string(20, 'a')),
                                          testing::Pair(1, std::string(20, 'b')),
                                          testing::Pair(2, std::string(20, 'c'))));
}

TEST_F(HttpStream, DrainingFinishesWhatRunsAndClosesIdleConnections) {
  start();
  HttpClient idle(port()), busy(port());
  EXPECT_EQ(idle.get("/version").status, 200);
  busy.send(print_post("/v1/completions", kStream));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->emit(0, "first and ");
  ASSERT_TRUE(busy.read_until("\r\n\r\n"));
  fake.service->drain();
  EXPECT_EQ(idle.get("/health").status, 503) << "not ready, but there";
  const auto refused = idle.post("/v1/completions", kStream);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_FALSE(listener->drain(50ms));
  EXPECT_TRUE(idle.closed_by_server());
  HttpClient late(port());
  EXPECT_FALSE(late.send(print_get("/version")) && late.read_response().status != 0);
  fake.engine->emit(0, "last words");
  fake.engine->finish(0, FinishReason::stop);
  EXPECT_EQ(text_of(events_of(busy.read_response().body)), "first and last words");
  EXPECT_TRUE(busy.closed_by_server());
  EXPECT_TRUE(listener->drain(10s));
}

TEST_F(HttpStream, AStoppedEngineEndsEveryStreamProperly) {
  start();
  HttpClient stream(port()), whole(port());
  stream.send(print_post("/v1/completions", kStream));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  whole.send(print_post("/v1/completions", kWhole));
  ASSERT_TRUE(fake.engine->wait_for_requests(2));
  fake.engine->emit(0, "x");
  ASSERT_TRUE(stream.read_until("\"text\":\"x\""));
  fake.engine->stop();
  const auto events = events_of(stream.read_response().body);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(json::parse(events[1]).at("error").at("code"), "cancelled");
  EXPECT_EQ(events[2], "[DONE]");
  EXPECT_EQ(whole.read_response().status, 503);
}

TEST_F(HttpStream, StoppingCutsOffAndCancels) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", kStream));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  listener->stop();
  EXPECT_TRUE(fake.engine->cancelled(0));
  EXPECT_TRUE(client.closed_by_server());
  fake.engine->emit(0, "to nobody");
  fake.engine->finish(0, FinishReason::cancelled);
  listener.reset();
}

TEST_F(HttpStream, TheEngineMayOutliveTheListener) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/completions", kStream));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  listener.reset();
  fake.engine->emit(0, "to nobody");
  fake.engine->finish(0, FinishReason::cancelled);
}

}  // namespace
}  // namespace tessera
