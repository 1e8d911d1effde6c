// Callers over HTTP: admin routes, rates, times, request ids, and the access log.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "engine/retry_after.h"
#include "tests/server/http_fixture.h"
#include "tests/server/written_tenants.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kPrompt[] = R"({"prompt":"Say","max_tokens":50})";

// The lines of the access log.
class LoggedRequests {
 public:
  LoggedRequests() {
    sink_->set_pattern("%v");
    spdlog::register_logger(std::make_shared<spdlog::logger>("access", sink_));
  }
  ~LoggedRequests() { spdlog::drop("access"); }

  // Waits for a line with `text`. Returns: the line.
  std::string line(const std::string& text) {
    for (int i = 0; i < 1000; ++i) {
      std::istringstream lines(out_.str());
      for (std::string line; std::getline(lines, line);) {
        if (line.find(text) != std::string::npos) {
          return line;
        }
      }
      std::this_thread::sleep_for(10ms);
    }
    return "no line has " + text;
  }

 private:
  class Text : public std::stringbuf {
   public:
    std::streamsize xsputn(const char* text, std::streamsize size) override {
      const std::lock_guard lock(mutex);
      return std::stringbuf::xsputn(text, size);
    }
    std::mutex mutex;
  };
  struct Out {
    Text text;
    std::ostream stream{&text};
    std::string str() {
      const std::lock_guard lock(text.mutex);
      return text.str();
    }
  };

  Out out_;
  std::shared_ptr<spdlog::sinks::sink> sink_ =
      std::make_shared<spdlog::sinks::ostream_sink_mt>(out_.stream);
};

std::string repeated(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

class HttpTenants : public HttpFixture {
 protected:
  void start_with_tenants() {
    fake.engine->answer_with([](const EngineRequest&) { return "Hello there."; });
    start({}, {.api_keys = tenants_.keys()});
  }
  HttpClientResponse complete(const std::string& headers) {
    return HttpClient(port()).post("/v1/completions", kPrompt, headers);
  }

  const WrittenTenants tenants_{kTwoTenants};
};

TEST_F(HttpTenants, OnlyKeysWithTheRightUseAdminRoutes) {
  start_with_tenants();
  HttpClient client(port());
  EXPECT_EQ(client.post("/v1/cache/flush", "", kHeaderB).status, 403);
  EXPECT_EQ(fake.engine->flushes(), 0);
  EXPECT_EQ(client.post("/v1/cache/flush", "", kHeaderA).status, 200);
  EXPECT_EQ(fake.engine->flushes(), 1);
  const auto before = spdlog::default_logger()->level();
  const char* const debug = R"({"level":"debug"})";
  EXPECT_THAT(client.post("/v1/log-level", debug, kHeaderB).body, HasSubstr("the right 'admin'"));
  EXPECT_EQ(spdlog::default_logger()->level(), before);
  EXPECT_EQ(client.post("/v1/log-level", debug, kHeaderA).status, 200);
  EXPECT_EQ(spdlog::default_logger()->level(), spdlog::level::debug);
  for (const char* path : {"/v1/cache/export", "/v1/cache/import"}) {
    EXPECT_EQ(client.post(path, "{}", kHeaderB).status, 403);
    EXPECT_EQ(client.post(path, "{}", kHeaderA).status, 400);
  }
  for (const char* path : {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}) {
    EXPECT_EQ(client.post(path, R"({"lora_name":"x","lora_path":"y"})", kHeaderB).status, 403);
    EXPECT_EQ(client.post(path, R"({"lora_name":"x","lora_path":"y"})", kHeaderA).status, 501);
  }
  const auto wrong = client.post("/v1/log-level", R"({"level":"loud"})", kHeaderA);
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.body, HasSubstr("'loud' is none of trace, debug"));
  spdlog::set_level(before);
}

TEST_F(HttpTenants, EachAnswerHasTheRequestsId) {
  start_with_tenants();
  const std::string given = "x-request-id: mine-1\r\n";
  EXPECT_EQ(complete(kHeaderA + given).headers.at("x-request-id"), "mine-1");
  EXPECT_EQ(complete(given).headers.at("x-request-id"), "mine-1") << "401";
  const auto streamed = HttpClient(port()).post(
      "/v1/completions", R"({"prompt":"Say","stream":true})", kHeaderA + given);
  EXPECT_EQ(streamed.headers.at("x-request-id"), "mine-1");
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_EQ(complete(kHeaderA + ("traceparent: " + trace) + "\r\n").headers.at("traceparent"),
            trace);
  EXPECT_FALSE(streamed.headers.contains("traceparent"));
  EXPECT_EQ(complete(kHeaderA).headers.at("x-request-id").size(), 32U) << "a new one";
  HttpClient client(port());
  client.send("GET / HTTP/1.1\r\n\r\n");  // without Host
  EXPECT_EQ(client.read_response().headers.at("x-request-id").size(), 32U);
}

TEST_F(HttpTenants, ARateThatIsUsedUpAnswers429AndTheTimeOfARetry) {
  start_with_tenants();
  EXPECT_EQ(complete(kHeaderB).status, 200);
  const auto refused = complete(kHeaderB);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("6 requests a minute"));
  EXPECT_EQ(refused.headers.at("retry-after"), "10");
  EXPECT_EQ(complete(kHeaderA).status, 200) << "another tenant is not concerned";
}

TEST_F(HttpTenants, ARateThatIsUsedUpIsToldBeforeABodyIsRead) {
  start_with_tenants();
  EXPECT_EQ(complete(kHeaderB).status, 200);
  for (const char* const path :
       {"/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens",
        "/v1/responses", "/v1/embeddings", "/v1/score", "/v1/rerank", "/tokenize", "/detokenize",
        "/apply-template"}) {
    HttpClient client(port());
    client.send(std::string("POST ") + path + " HTTP/1.1\r\nHost: localhost\r\n" + kHeaderB +
                "Content-Length: 1000000\r\n\r\n");
    const auto refused = client.read_response();
    EXPECT_EQ(refused.status, 429) << path;
    EXPECT_EQ(refused.headers.at("retry-after"), "10") << path;
    EXPECT_THAT(refused.body, HasSubstr("6 requests a minute")) << path;
    EXPECT_EQ(refused.body.find(R"("type":"error")") != std::string::npos,
              std::string_view(path).starts_with("/v1/messages"))
        << "the dialect's error: " << refused.body;
  }
  EXPECT_EQ(HttpClient(port()).get("/v1/models", kHeaderB).status, 200) << "that costs nothing";
}

TEST_F(HttpTenants, EachWorkOnATextCountsAsARequest) {
  start_with_tenants();
  EXPECT_EQ(HttpClient(port()).post("/tokenize", R"({"prompt":"a"})", kHeaderB).status, 200);
  EXPECT_EQ(complete(kHeaderB).status, 429);
}

TEST_F(HttpTenants, TextsThatAreOnlyConvertedCountATenthOfTheirTokens) {
  tenants_.write(R"(
tenants:
  - name: a
    tokens-per-minute: 6000
    keys: [{name: key-of-a, key: a-long-key-of-tenant-a}]
)");
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/tokenize", R"({"prompt":")" + std::string(6'000, 'a') + "\"}"},
           {"/detokenize", R"({"tokens":[5)" + repeated(",5", 6'000) + "]}"},
           {"/v1/messages/count_tokens",
            R"({"messages":[{"role":"user","content":")" + std::string(6'000, 'a') + "\"}]}"}}) {
    start({}, {.api_keys = tenants_.keys()});
    const auto ask = [&] { return HttpClient(port()).post(path, body, kHeaderA).status; };
    EXPECT_EQ(ask(), 200) << path;
    EXPECT_EQ(ask(), 200) << path << ": 600 of 1,000 tokens were used";
    EXPECT_EQ(ask(), 429) << path;
    listener->stop();
  }
}

TEST_F(HttpTenants, RetryAfterIsTheEngineEstimate) {
  start_with_tenants();
  fake.engine->refuse_with(with_retry_after(absl::ResourceExhaustedError("overloaded"), 7.2s));
  const auto refused = complete(kHeaderA);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "8") << "whole seconds, rounded up";
}

TEST_F(HttpTenants, ClientsSetTheQueueTimeoutAndTheDeadline) {
  start_with_tenants();
  const auto before = std::chrono::steady_clock::now();
  complete(std::string(kHeaderA) + "x-queue-timeout: 2.5\r\nx-request-timeout: 60\r\n");
  const auto after = std::chrono::steady_clock::now();
  const EngineRequest request = fake.engine->request(0);
  ASSERT_TRUE(request.start_by && request.deadline);
  EXPECT_GE(*request.start_by, before + 2500ms);
  EXPECT_LE(*request.start_by, after + 2500ms);
  EXPECT_GE(*request.deadline, before + 60s);
  EXPECT_LE(*request.deadline, after + 60s);
  complete(kHeaderA);
  EXPECT_FALSE(fake.engine->request(1).start_by) << "this server has no queue timeout of its own";
  for (const std::string value : {"0", "-1", "soon", "nan", "100000"}) {
    const auto wrong = complete(kHeaderA + ("x-queue-timeout: " + value + "\r\n"));
    EXPECT_EQ(wrong.status, 400) << value;
    EXPECT_THAT(wrong.body, HasSubstr("x-queue-timeout")) << value;
  }
}

TEST_F(HttpTenants, ARequestThatWaitedTooLongEndsWithItsReason) {
  start({}, {.api_keys = tenants_.keys()});
  HttpClient client(port());
  client.send(print_post("/v1/completions", kPrompt, kHeaderA));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->finish(0, FinishReason::cancelled,
                      absl::DeadlineExceededError("the request's deadline has passed"));
  const auto response = client.read_response();
  EXPECT_EQ(response.status, 504);
  EXPECT_THAT(response.body, HasSubstr("deadline has passed"));
}

TEST_F(HttpTenants, AStreamThatOnlyWaitedIsARefusalAndNotABrokenStream) {
  start({}, {.api_keys = tenants_.keys()});
  HttpClient client(port());
  client.send(print_post("/v1/completions", R"({"prompt":"a","stream":true})", kHeaderA));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->finish(0, FinishReason::cancelled,
                      absl::ResourceExhaustedError("it has waited for its turn too long"));
  const auto response = client.read_response();
  EXPECT_EQ(response.status, 429);
  EXPECT_THAT(response.body, HasSubstr("for its turn"));
}

TEST_F(HttpTenants, SeeTheirOwnPrefixesOnly) {
  start_with_tenants();
  PrefixOutline outline;
  for (const char* const tenant : {"a", "b", "b"}) {
    Caller caller;
    caller.tenant.salt = tenant;
    outline.blocks.emplace_back().salt = PrefixOutline::salt_mark(caller.cache_salt(""));
  }
  fake.engine->outline_as(outline);
  const auto listed = [&](const char* header) {
    const auto answer = nlohmann::json::parse(HttpClient(port()).get("/v1/cache", header).body);
    return std::pair(answer.at("tree").at("units").size(),
                     answer.at("tree").at("units_of_other_salts").get<int>());
  };
  EXPECT_EQ(listed(kHeaderA), std::pair(size_t{1}, 2));
  EXPECT_EQ(listed(kHeaderB), std::pair(size_t{2}, 1));
}

TEST_F(HttpTenants, AreReadAgainWhileAnAnswerGoesOn) {
  const ApiKeys keys = tenants_.keys();
  start({}, {.api_keys = keys});
  HttpClient client(port());
  client.send(print_post("/v1/completions", R"({"prompt":"a","stream":true})", kHeaderA));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->emit(0, "x");
  EXPECT_TRUE(client.read_until("\"x\""));
  tenants_.write(R"(
tenants:
  - name: a
    keys: [{name: key-of-a, key: another-long-key-of-a}]
)");
  ASSERT_TRUE(keys.reload(tenants_.sources(), {}).ok());
  EXPECT_EQ(HttpClient(port()).get("/v1/models", kHeaderA).status, 401) << "the old key is gone";
  EXPECT_EQ(HttpClient(port())
                .get("/v1/models", "Authorization: Bearer another-long-key-of-a\r\n")
                .status,
            200);
  fake.engine->emit(0, "y");
  EXPECT_TRUE(client.read_until("\"y\"")) << "running requests go on";
  fake.engine->finish(0, FinishReason::stop);
  EXPECT_TRUE(client.read_until("[DONE]"));
}

TEST_F(HttpTenants, TheAccessLogNamesKeyTokensAndStatusOfEachRequest) {
  LoggedRequests log;
  start_with_tenants();
  complete(std::string(kHeaderA) + "x-request-id: one\r\n");
  EXPECT_THAT(log.line("id=one"),
              AllOf(HasSubstr("POST /v1/completions 200 "), HasSubstr("key=key-of-a tenant=a"),
                    HasSubstr("prompt=4 cached=0 completion=12"), HasSubstr("first=")));
  complete("x-request-id: two\r\n");
  EXPECT_THAT(log.line("id=two"), HasSubstr("POST /v1/completions 401 "));
  HttpClient(port()).get("/nowhere", std::string(kHeaderB) + "x-request-id: three\r\n");
  EXPECT_THAT(log.line("id=three"), AllOf(HasSubstr("/nowhere 404"), HasSubstr("key=key-of-b")));
}

TEST_F(HttpTenants, TheAccessLogTellsThatAClientLeft) {
  LoggedRequests log;
  start({}, {.api_keys = tenants_.keys()});
  {
    HttpClient client(port());
    client.send(print_post("/v1/completions", R"({"prompt":"a","stream":true})",
                           std::string(kHeaderA) + "x-request-id: gone\r\n"));
    ASSERT_TRUE(fake.engine->wait_for_requests(1));
    fake.engine->emit(0, "x");
    EXPECT_TRUE(client.read_until("\"x\""));
  }
  EXPECT_TRUE(fake.engine->wait_for_cancel(0));
  fake.engine->finish(0, FinishReason::cancelled);
  EXPECT_THAT(log.line("id=gone"), testing::EndsWith(" cut"));
}

}  // namespace
}  // namespace tessera
