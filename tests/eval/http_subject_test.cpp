#include "eval/http/http_subject.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "eval/http/http_client.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;

// A server with canned answers and one thread for each connection.
class CannedServer {
 public:
  using Answer = std::function<std::pair<int, std::string>(const std::string& target, const json&)>;

  explicit CannedServer(Answer answer)
      : answer_(std::move(answer)), acceptor_(io_, {asio::ip::address_v4::loopback(), 0}) {
    thread_ = std::thread([this] { accept(); });
  }
  ~CannedServer() {
    stopping_ = true;
    boost::system::error_code ignored;
    tcp::socket(io_).connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
    for (std::thread& connection : connections_) connection.join();
  }
  std::string url() const {
    return absl::StrCat("http://127.0.0.1:", acceptor_.local_endpoint().port());
  }

 private:
  void accept() {
    while (true) {
      auto socket = std::make_shared<tcp::socket>(acceptor_.accept());
      if (stopping_) return;
      connections_.emplace_back([this, socket] { serve(*socket); });
    }
  }

  void serve(tcp::socket& socket) const {
    boost::beast::flat_buffer buffer;
    boost::system::error_code error;
    while (true) {
      http::request<http::string_body> request;
      http::read(socket, buffer, request, error);
      if (error) return;
      const auto [status, body] =
          answer_(std::string(request.target()), json::parse(request.body(), nullptr, false));
      http::response<http::string_body> response(static_cast<http::status>(status), 11);
      response.body() = body;
      response.prepare_payload();
      http::write(socket, response, error);
    }
  }

  const Answer answer_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> connections_;
  std::thread thread_;
};

constexpr char kModels[] = R"({"data": [{"id": "tiny"}]})";

// Every token's log probability depends on its position; every third is not the most likely token.
std::string echo(const json& request) {
  json own = json::array({nullptr});
  json top = json::array({nullptr});
  for (size_t i = 1; i <= request["prompt"].size(); ++i) {
    const double logprob = -0.25 * static_cast<double>(i);
    own.push_back(logprob);
    top.push_back({{"x", i % 3 == 0 ? logprob / 2 : logprob}});
  }
  return json{{"choices",
               {{{"text", "?"}, {"logprobs", {{"token_logprobs", own}, {"top_logprobs", top}}}}}}}
      .dump();
}

Trial trial_of(std::vector<int32_t> prompt, std::vector<int32_t> forced) {
  return {.prompt = std::move(prompt), .forced = std::move(forced)};
}

TEST(HttpAddress, IsReadFromAUrl) {
  const auto address = HttpAddress::parse("http://example.org:8080/a/");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->host, "example.org");
  EXPECT_EQ(address->port, "8080");
  EXPECT_EQ(address->prefix, "/a");
  EXPECT_EQ(HttpAddress::parse("http://h")->port, "80");
  for (const char* const wrong : {"https://h", "h:80", "http://", "http://h:x", "http://:1"}) {
    EXPECT_EQ(HttpAddress::parse(wrong).status().code(), absl::StatusCode::kInvalidArgument)
        << wrong;
  }
}

TEST(HttpSubject, ScoresForcedTokensInAnEchoedPrompt) {
  std::mutex mutex;
  json seen;
  const CannedServer server([&](const std::string& target, const json& body) {
    if (target == "/v1/models") return std::pair(200, std::string(kModels));
    const std::lock_guard lock(mutex);
    seen = body;
    return std::pair(200, echo(body));
  });
  auto subject = make_http_subject(server.url(), 2);
  ASSERT_TRUE(subject.ok()) << subject.status();
  const Trial trial = trial_of({1, 5, 6}, {7, 8});
  TrialResult result;
  const Job job{.trial = &trial, .result = &result};
  ASSERT_TRUE((*subject)->run({&job, 1}, [] {}).ok());
  EXPECT_THAT(result.logprobs, ElementsAre(-0.75f, -1.0f));
  EXPECT_THAT(result.likeliest, ElementsAre(0, 1));
  EXPECT_EQ(seen["model"], "tiny");
  EXPECT_THAT(seen["prompt"].get<std::vector<int>>(), ElementsAre(1, 5, 6, 7, 8));
  EXPECT_EQ(seen["echo"], true);
  EXPECT_EQ(seen["temperature"], 0);
  EXPECT_EQ(seen["repetition_penalty"], 1) << "the model's own would bias what is measured";
  EXPECT_EQ(seen["top_k"], -1) << "all, for this server and for vLLM";
}

TEST(HttpSubject, RunsManyJobsOnItsConnections) {
  const CannedServer server([](const std::string& target, const json& body) {
    return std::pair(200, target == "/v1/models" ? std::string(kModels) : echo(body));
  });
  auto subject = make_http_subject(server.url(), 4);
  ASSERT_TRUE(subject.ok()) << subject.status();
  std::vector<Trial> trials;
  for (size_t i = 0; i < 40; ++i) trials.push_back(trial_of(std::vector<int32_t>(i + 1, 3), {4}));
  std::vector<TrialResult> results(trials.size());
  std::vector<Job> jobs;
  for (size_t i = 0; i < trials.size(); ++i)
    jobs.push_back({.trial = &trials[i], .result = &results[i]});
  int done = 0;
  ASSERT_TRUE((*subject)->run(jobs, [&] { ++done; }).ok());
  EXPECT_EQ(done, 40);
  for (size_t i = 0; i < trials.size(); ++i) {
    EXPECT_THAT(results[i].logprobs, ElementsAre(-0.25f * static_cast<float>(i + 1)));
  }
}

TEST(HttpSubject, TakesGeneratedText) {
  const CannedServer server([](const std::string& target, const json& body) {
    return std::pair(
        200,
        target == "/v1/models"
            ? std::string(kModels)
            : json{{"choices", {{{"text", absl::StrCat("of ", body["max_tokens"].get<int>())}}}}}
                  .dump());
  });
  auto subject = make_http_subject(server.url(), 1);
  ASSERT_TRUE(subject.ok()) << subject.status();
  const Trial trial{.prompt = {1}, .generate = 12};
  TrialResult result;
  const Job job{.trial = &trial, .result = &result};
  ASSERT_TRUE((*subject)->run({&job, 1}, [] {}).ok());
  EXPECT_EQ(result.text, "of 12");
}

TEST(HttpSubject, ReportsWhatGoesWrong) {
  EXPECT_EQ(make_http_subject("http://127.0.0.1:1", 1).status().code(),
            absl::StatusCode::kUnavailable);
  const CannedServer server([](const std::string& target, const json&) {
    if (target == "/v1/models") return std::pair(200, std::string(kModels));
    return std::pair(400, std::string("echo is not supported"));
  });
  auto subject = make_http_subject(server.url(), 2);
  ASSERT_TRUE(subject.ok()) << subject.status();
  const Trial trial = trial_of({1}, {2});
  TrialResult result;
  const Job job{.trial = &trial, .result = &result};
  const absl::Status refused = (*subject)->run({&job, 1}, [] {});
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(HasSubstr("400"), HasSubstr("echo is")));
  const CannedServer odd([](const std::string&, const json&) {
    return std::pair(200, std::string("{\"data\": []}"));
  });
  EXPECT_EQ(make_http_subject(odd.url(), 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera
