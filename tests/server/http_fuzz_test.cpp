#include <gtest/gtest.h>

#include <random>

#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;

const char* const kBodies[] = {
    R"({"model":"fake","prompt":["a",""],"max_tokens":5,"stop":["x","yy"],"n":2,"seed":1})",
    R"({"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"stream":true,
        "stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":2})",
    R"({"prompt":[1,2,3],"stream":true,"logit_bias":{"5":-1.5},"temperature":0.1})",
    R"({"prompt":"\u20ac \ud83c\udf4e \\ \"","add_special_tokens":false})",
    R"({"tokens":[1,2,256],"model":null})",
};

const char* const kPaths[] = {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize",
                              "/v1/models/%66ake"};

std::string mutated(std::string text, std::mt19937& random) {
  for (auto n = random() % 6; n > 0 && !text.empty(); --n) {
    const std::size_t at = random() % text.size();
    switch (random() % 4) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, random() % 8);
        break;
      case 2:
        text.insert(at, text.substr(random() % text.size(), random() % 12));
        break;
      default:
        text.insert(at, 1 + random() % 3, "[]{}\",:0-eE\\\xff\n"[random() % 14]);
    }
  }
  return text;
}

class HttpFuzz : public HttpFixture {
 protected:
  void start_fuzzed() {
    fake.engine->answer_with([](const EngineRequest&) { return "ok \xff"; });
    start({.header_bytes = 2048,
           .body_bytes = 4096,
           .idle_timeout = 2s,
           .header_timeout = 2s,
           .body_timeout = 2s});
  }
  void expect_alive() {
    HttpClient client(port());
    EXPECT_EQ(client.post("/v1/completions", R"({"prompt":"a"})").status, 200);
  }
};

// Nearly valid bodies: each gets a response, and the connection stays usable.
TEST_F(HttpFuzz, EveryBodyGetsAnAnswer) {
  start_fuzzed();
  auto client = std::make_unique<HttpClient>(port());
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::string body = mutated(kBodies[random() % std::size(kBodies)], random);
    SCOPED_TRACE(body);
    const auto response = client->post(kPaths[random() % std::size(kPaths)], body);
    ASSERT_TRUE(response.complete);
    ASSERT_TRUE(response.status == 200 || response.status == 400 || response.status == 404 ||
                response.status == 405)
        << response.status;
  }
  expect_alive();
}

// Bytes that are hardly HTTP, from clients that disconnect at any time.
TEST_F(HttpFuzz, SurvivesAnyBytes) {
  start_fuzzed();
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    std::mt19937 random(seed);
    std::string text;
    for (auto n = 1 + random() % 3; n > 0; --n) {
      text += mutated(
          print_post(kPaths[random() % std::size(kPaths)], kBodies[random() % std::size(kBodies)]),
          random);
    }
    HttpClient client(port());
    const std::size_t half = random() % (text.size() + 1);
    client.send(std::string_view(text).substr(0, half));
    client.send(std::string_view(text).substr(half));
    switch (random() % 3) {
      case 0:
        client.reset();
        break;
      case 1:
        client.finish_sending();
        client.closed_by_server();
        break;
      default:
        client.close();
    }
  }
  expect_alive();
  EXPECT_TRUE(listener->drain(10s));
  EXPECT_EQ(listener->connections(), 0u);
}

}  // namespace
}  // namespace tessera
