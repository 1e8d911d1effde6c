#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "tests/server/http_fixture.h"

// /v1/embeddings: OpenAI's shapes, many inputs over a short queue, refusals.
namespace tessera {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class HttpEmbeddings : public HttpFixture {
 protected:
  void start_answering() {
    fake.engine->answer_with([](const EngineRequest&) { return ""; });
    start();
  }

  HttpClientResponse ask(const std::string& members) {
    HttpClient client(port());
    return client.post("/v1/embeddings", "{" + members + "}");
  }

  // Returns: the embedding of the request `id`, of the length 1.
  std::vector<float> unit_embedding(RequestId id, std::size_t dimensions = 4) const {
    std::vector<float> values = FakeEngine::embedding_of(fake.engine->request(id));
    values.resize(dimensions);
    double squares = 0;
    for (const float value : values) {
      squares += double{value} * double{value};
    }
    for (float& value : values) {
      value = static_cast<float>(value * (1 / std::sqrt(squares)));
    }
    return values;
  }
};

TEST_F(HttpEmbeddings, TakesEachShapeOfInput) {
  start_answering();
  const std::vector<int32_t> a = {256, 'a'};
  const std::vector<int32_t> b = {256, 'b'};
  const std::vector<std::pair<std::string, std::vector<std::vector<int32_t>>>> cases = {
      {R"("a")", {a}},
      {R"(["a","b"])", {a, b}},
      {"[5,6]", {{5, 6}}},
      {"[[5],[6,7]]", {{5}, {6, 7}}}};
  for (const auto& [input, prompts] : cases) {
    SCOPED_TRACE(input);
    const RequestId first = fake.engine->requests();
    const json answer = json::parse(ask(R"("input":)" + input).body);
    ASSERT_EQ(answer.at("object"), "list") << answer;
    EXPECT_EQ(answer.at("model"), "fake");
    ASSERT_EQ(answer.at("data").size(), prompts.size());
    int64_t tokens = 0;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const EngineRequest request = fake.engine->request(first + i);
      EXPECT_EQ(request.prompt, prompts[i]);
      EXPECT_EQ(request.max_tokens, 0);
      EXPECT_EQ(request.pooling, Pooling::last) << "the server's";
      const json& one = answer.at("data")[i];
      EXPECT_EQ(one.at("object"), "embedding");
      EXPECT_EQ(one.at("index"), i);
      EXPECT_EQ(one.at("embedding").get<std::vector<float>>(), unit_embedding(first + i));
      tokens += static_cast<int64_t>(prompts[i].size());
    }
    EXPECT_EQ(answer.at("usage").at("prompt_tokens"), tokens);
    EXPECT_EQ(answer.at("usage").at("total_tokens"), tokens);
  }
}

TEST_F(HttpEmbeddings, AnswersInBase64WithTheSameBits) {
  start_answering();
  const json answer = json::parse(ask(R"("input":"a","encoding_format":"base64","user":"u")").body);
  std::string bytes;
  ASSERT_TRUE(
      absl::Base64Unescape(answer.at("data")[0].at("embedding").get<std::string>(), &bytes));
  std::vector<float> values(4);
  ASSERT_EQ(bytes.size(), values.size() * sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  EXPECT_EQ(values, unit_embedding(0));
}

TEST_F(HttpEmbeddings, ShortensBeforeItNormalizesAndPoolsAsAsked) {
  start_answering();
  const auto embedding = [&](const std::string& members) {
    return json::parse(ask(R"("input":"a",)" + members).body)
        .at("data")[0]
        .at("embedding")
        .get<std::vector<float>>();
  };
  const std::vector<float> shortened = embedding(R"("dimensions":2)");
  EXPECT_EQ(shortened, unit_embedding(0, 2));
  EXPECT_EQ(embedding(R"("pooling":"mean","normalize":false)"),
            (std::vector<float>{256 + 'a', 2, 1, -0.5f}));
  EXPECT_EQ(embedding(R"("pooling":"cls","normalize":false,"dimensions":3)"),
            (std::vector<float>{256 + 'a', 2, 2}));
}

TEST_F(HttpEmbeddings, ManyInputsKeepTheirOrderAndFewAreInTheEngineAtOnce) {
  start();
  json inputs = json::array();
  for (int i = 0; i < 200; ++i) {
    inputs.push_back(std::vector<int>(static_cast<std::size_t>(1 + i % 7), i % 250));
  }
  HttpClient client(port());
  client.send(print_post("/v1/embeddings", json{{"input", inputs}, {"normalize", false}}.dump()));
  ASSERT_TRUE(fake.engine->wait_for_requests(32));
  for (RequestId id = 0; id < 200; ++id) {
    ASSERT_TRUE(fake.engine->wait_for_requests(std::min<std::size_t>(200, 32 + id)));
    EXPECT_LE(fake.engine->requests(), 32 + id);
    // Inputs end in another order than they began.
    const RequestId ended = id % 2 == 0 && id + 1 < 200 ? id + 1 : id - (id % 2);
    fake.engine->embed(ended);
    fake.engine->finish(ended, FinishReason::length);
  }
  const json data = json::parse(client.read_response().body).at("data");
  ASSERT_EQ(data.size(), 200u);
  for (std::size_t i = 0; i < data.size(); ++i) {
    EXPECT_EQ(data[i].at("index"), i);
    EXPECT_EQ(data[i].at("embedding")[1], 1 + i % 7);
    EXPECT_EQ(data[i].at("embedding")[0], (1 + i % 7) * (i % 250));
  }
}

TEST_F(HttpEmbeddings, AFullQueueDelaysInputsAsLongAsOthersRun) {
  start();
  fake.engine->refuse_after(1, absl::ResourceExhaustedError("the queue is full"));
  HttpClient client(port());
  client.send(print_post("/v1/embeddings", R"({"input":["a","b","c"]})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(1));
  fake.engine->refuse_after(100, absl::ResourceExhaustedError("the queue is full"));
  for (RequestId id = 0; id < 3; ++id) {
    ASSERT_TRUE(fake.engine->wait_for_requests(id + 1));
    fake.engine->embed(id);
    fake.engine->finish(id, FinishReason::length);
  }
  EXPECT_EQ(client.read_response().status, 200);
  fake.engine->refuse_with(absl::ResourceExhaustedError("the queue is full"));
  EXPECT_EQ(ask(R"("input":["a","b"])").status, 429);
}

TEST_F(HttpEmbeddings, AFailureCancelsTheOtherInputsAndSoDoesAClientThatLeaves) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/embeddings", R"({"input":["a","b"]})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(2));
  fake.engine->finish(1, FinishReason::failed, absl::InternalError("the model is broken"));
  const HttpClientResponse response = client.read_response();
  EXPECT_EQ(response.status, 500);
  EXPECT_THAT(response.body, HasSubstr("the model is broken"));
  EXPECT_TRUE(fake.engine->wait_for_cancel(0));
  client.send(print_post("/v1/embeddings", R"({"input":"c"})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(3));
  client.close();
  EXPECT_TRUE(fake.engine->wait_for_cancel(2));
}

TEST_F(HttpEmbeddings, RefusesByNameWhatItCannotDo) {
  start_answering();
  struct Refused {
    std::string body;
    std::string param;
    std::string message;
  };
  std::string many = R"("input":["a")";
  for (int i = 0; i < 2048; ++i) {
    many += R"(,"a")";
  }
  many += "]";
  for (const Refused& one :
       {Refused{R"("model":"fake")", "input", "input is missing"},
        Refused{R"("input":[])", "input", "not a list of 0"},
        Refused{R"("input":["a",5])", "input[1]", "not 5"},
        Refused{R"("input":[[]])", "input[0]", "not a list of 0"},
        Refused{R"("input":"","add_special_tokens":false)", "input", "input[0] is empty"},
        Refused{R"("input":[[1],[300]])", "input", "input[1] has the token 300"},
        Refused{many, "input", "2049 inputs, 1 to 2048"},
        Refused{R"("input":"a","dimensions":5)", "dimensions", "embeddings have 4"},
        Refused{R"("input":"a","dimensions":0)", "dimensions", "an integer from 1"},
        Refused{R"("input":"a","encoding_format":"int8")", "encoding_format", "base64"},
        Refused{R"("input":"a","pooling":"max")", "pooling", "mean"},
        Refused{R"("input":"a","temperature":1)", "temperature", "not known"},
        Refused{R"("input":")" + std::string(100'001, 'x') + '"', "input",
                "input[0] has 100002 tokens"},
        Refused{R"("input":"a","model":"gpt")", "model", "does not exist"}}) {
    const HttpClientResponse response = ask(one.body);
    const json error = json::parse(response.body).value("error", json::object());
    EXPECT_EQ(response.status, one.param == "model" ? 404 : 400) << one.message;
    EXPECT_EQ(error.value("param", ""), one.param);
    EXPECT_THAT(error.value("message", ""), HasSubstr(one.message));
  }
  EXPECT_EQ(fake.engine->requests(), 0u);
}

}  // namespace
}  // namespace tessera
