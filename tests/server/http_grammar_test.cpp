// Requests whose text must match a grammar. The fake compiler takes a while for texts that begin
// with "slow", and refuses "bad".

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

class HttpGrammar : public HttpFixture {
 protected:
  void SetUp() override {
    fake.engine->answer_with([](const EngineRequest& request) {
      return std::string(request.grammar != nullptr ? "bound" : "free");
    });
    start({.ping_interval = 30ms});
  }

  json post(const std::string& fields) {
    HttpClient client(port());
    last = client.post("/v1/completions", R"({"prompt":"a","max_tokens":9,)" + fields + "}");
    return last.body.starts_with('{') ? json::parse(last.body) : json();
  }

  HttpClientResponse last;
};

TEST_F(HttpGrammar, ReachTheEngineWithTheirSamples) {
  const json body = post(R"("guided_regex":"a+","n":3)");
  ASSERT_EQ(body.at("choices").size(), 3u) << body;
  for (const json& choice : body.at("choices")) {
    EXPECT_EQ(choice.at("text"), "bound");
  }
  EXPECT_EQ(post(R"("n":1)").at("choices").at(0).at("text"), "free");
}

TEST_F(HttpGrammar, AreWaitedForWhileOthersAreAnswered) {
  std::thread slow([&] {
    HttpClient client(port());
    const auto answer =
        client.post("/v1/completions", R"({"prompt":"a","max_tokens":9,"guided_regex":"slow"})");
    EXPECT_EQ(json::parse(answer.body).at("choices").at(0).at("text"), "bound");
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(post(R"("n":1)").at("choices").at(0).at("text"), "free");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 300ms) << "not behind the compilation";
  slow.join();
}

TEST_F(HttpGrammar, AreStreamed) {
  post(R"("guided_regex":"slow","stream":true)");
  EXPECT_EQ(last.status, 200);
  EXPECT_THAT(last.body, testing::EndsWith("data: [DONE]\n\n"));
  EXPECT_THAT(last.body, testing::HasSubstr("\"finish_reason\":\"stop\""));
  EXPECT_THAT(last.body, testing::StartsWith(": ping\n\n")) << "while the grammar is compiled";
}

TEST_F(HttpGrammar, AreRefusedByAnEventAfterAPing) {
  post(R"("guided_regex":"slow and bad","stream":true)");
  EXPECT_EQ(last.status, 200);
  EXPECT_THAT(last.body, testing::HasSubstr("guided_regex: is bad"));
  EXPECT_THAT(last.body, testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(HttpGrammar, IsTheClientsErrorIfItDoesNotCompileInAStreamToo) {
  for (const char* const stream : {"", R"("stream":true,)"}) {
    const json body = post(stream + std::string(R"("guided_regex":"bad")"));
    EXPECT_EQ(last.status, 400);
    EXPECT_EQ(body.at("error").at("param"), "guided_regex");
    EXPECT_EQ(body.at("error").at("message"), "guided_regex: is bad");
  }
}

TEST_F(HttpGrammar, EndWithTheClientThatWaits) {
  {
    HttpClient client(port());
    client.send(print_post("/v1/completions", R"({"prompt":"a","guided_regex":"slow"})"));
    std::this_thread::sleep_for(50ms);
  }  // disconnects
  EXPECT_EQ(post(R"("n":1)").at("choices").at(0).at("text"), "free");
  std::this_thread::sleep_for(400ms);
  EXPECT_EQ(fake.engine->requests(), 1) << "no request waits for the grammar any more";
}

}  // namespace
}  // namespace tessera
