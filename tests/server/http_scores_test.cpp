#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/openai/score_request.h"
#include "tests/server/http_fixture.h"

// /v1/score and /v1/rerank: the forms of other servers, order, bounds, refusals.
namespace tessera {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class HttpScores : public HttpFixture {
 protected:
  void start_answering() {
    fake.engine->answer_with([](const EngineRequest&) { return ""; });
    start();
  }

  HttpClientResponse ask(const std::string& path, const json& body) {
    HttpClient client(port());
    return client.post(path, body.dump());
  }

  json answer(const std::string& path, const json& body) {
    const HttpClientResponse response = ask(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }

  // Returns: the cosine of two requests' embeddings.
  double cosine(RequestId a, RequestId b) const {
    const auto left = FakeEngine::embedding_of(fake.engine->request(a));
    const auto right = FakeEngine::embedding_of(fake.engine->request(b));
    double product = 0;
    double squares[2] = {};
    for (std::size_t i = 0; i < left.size(); ++i) {
      product += double{left[i]} * double{right[i]};
      squares[0] += double{left[i]} * double{left[i]};
      squares[1] += double{right[i]} * double{right[i]};
    }
    return product / std::sqrt(squares[0] * squares[1]);
  }
};

// The fake's embedding of a text depends on its length: the longer, the further from "a".
const json kDocuments = {"aaaaaaaa", "a", "\x01 aaaa"};

TEST_F(HttpScores, RanksDocumentsByTheirCosineWithTheQuery) {
  start_answering();
  const json ranked = answer("/v1/rerank", {{"query", "a"}, {"documents", kDocuments}});
  ASSERT_EQ(ranked.at("results").size(), 3u) << ranked;
  EXPECT_EQ(ranked.at("model"), "fake");
  EXPECT_THAT(ranked.at("id").get<std::string>(), testing::StartsWith("rerank-"));
  double before = 1.1;
  for (const json& one : ranked.at("results")) {
    const auto index = one.at("index").get<std::size_t>();
    EXPECT_EQ(one.at("document"), (json{{"text", kDocuments[index]}}));
    EXPECT_NEAR(one.at("relevance_score").get<double>(), cosine(0, index + 1), 1e-6);
    EXPECT_LE(one.at("relevance_score").get<double>(), before);
    before = one.at("relevance_score");
  }
  EXPECT_EQ(ranked.at("results")[0].at("index"), 1) << "the query itself";
  EXPECT_EQ(ranked.at("results")[0].at("relevance_score"), 1);
  EXPECT_EQ(fake.engine->requests(), 4u) << "the query is embedded once";
  int64_t tokens = 0;
  for (RequestId id = 0; id < 4; ++id) {
    tokens += static_cast<int64_t>(fake.engine->request(id).prompt.size());
    EXPECT_EQ(fake.engine->request(id).pooling, Pooling::last);
  }
  EXPECT_EQ(ranked.at("usage").at("prompt_tokens"), tokens);
  EXPECT_EQ(ranked.at("usage").at("total_tokens"), tokens);
}

TEST_F(HttpScores, GivesTheBestFewWithOrWithoutTheirTexts) {
  start_answering();
  const json objects = {
      {{"text", "aaaaaaaa"}}, {{"text", "a"}}, {{"type", "text"}, {"text", "aa"}}};
  for (const char* path : {"/v1/rerank", "/v2/rerank", "/rerank"}) {
    const json best = answer(path, {{"query", {{"text", "a"}}},
                                    {"documents", objects},
                                    {"top_n", 2},
                                    {"user", "someone"},
                                    {"return_documents", false}});
    ASSERT_EQ(best.at("results").size(), 2u) << best;
    EXPECT_EQ(best.at("results")[0], (json{{"index", 1}, {"relevance_score", 1}}));
    EXPECT_EQ(best.at("results")[1].at("index"), 2);
  }
  const auto results = [&](int top_n) {
    return answer("/rerank", {{"query", "a"}, {"documents", kDocuments}, {"top_n", top_n}})
        .at("results")
        .size();
  };
  EXPECT_EQ(results(0), 3u) << "as vLLM: all";
  EXPECT_EQ(results(50), 3u);
}

TEST_F(HttpScores, KeepTheOrderOfEqualValues) {
  start_answering();
  const json same =
      answer("/rerank", {{"query", "bbbbb"}, {"documents", {"a", "a", "a", "bbbbb", "a"}}});
  std::vector<int> order;
  for (const json& one : same.at("results")) {
    order.push_back(one.at("index"));
  }
  EXPECT_EQ(order, (std::vector<int>{3, 0, 1, 2, 4}));
}

TEST_F(HttpScores, ComeInEachFormOfVllm) {
  start_answering();
  const std::vector<std::pair<const char*, const char*>> forms = {
      {"text_1", "text_2"}, {"queries", "items"}, {"queries", "documents"}, {"data_1", "data_2"}};
  for (const auto& [first, second] : forms) {
    const RequestId begin = fake.engine->requests();
    const json one = answer("/v1/score", {{first, "a"}, {second, {"b", "aaaa"}}});
    EXPECT_EQ(one.at("object"), "list");
    EXPECT_THAT(one.at("id").get<std::string>(), testing::StartsWith("score-"));
    EXPECT_GT(one.at("created"), 1'700'000'000);
    ASSERT_EQ(one.at("data").size(), 2u) << one;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(one.at("data")[i].at("index"), i);
      EXPECT_EQ(one.at("data")[i].at("object"), "score");
      EXPECT_NEAR(one.at("data")[i].at("score").get<double>(), cosine(begin, begin + 1 + i), 1e-6);
    }
    const json each = answer("/score", {{first, {"a", "aaaa"}}, {second, {"aaaa", "b"}}});
    ASSERT_EQ(each.at("data").size(), 2u);
    EXPECT_NEAR(each.at("data")[1].at("score").get<double>(), cosine(begin + 4, begin + 6), 1e-6);
    EXPECT_EQ(answer("/score", {{first, "a"}, {second, "a"}}).at("data")[0].at("score"), 1);
  }
}

TEST_F(HttpScores, TakeTheFieldsOfEmbeddings) {
  start_answering();
  answer("/v1/score", {{"text_1", "a"}, {"text_2", "b"}, {"pooling", "mean"}, {"priority", 1}});
  EXPECT_EQ(fake.engine->request(0).pooling, Pooling::mean);
  EXPECT_EQ(fake.engine->request(1).priority, 1);
  const json two = answer("/rerank", {{"query", "a"}, {"documents", "aaaa"}, {"dimensions", 1}});
  EXPECT_EQ(two.at("results")[0].at("relevance_score"), 1) << "the sign of the first value";
}

TEST_F(HttpScores, CountTheBytesOfTheirAnswerBeforeItIsComputed) {
  start_answering();
  const std::string escaped(1000, '\x01');  // six bytes each in the answer
  json body = {{"query", "a"}, {"documents", std::vector<std::string>(100, escaped)}};
  for (const bool with_documents : {true, false}) {
    body["return_documents"] = with_documents;
    const std::size_t printed = ask("/rerank", body).body.size();
    const auto parsed = parse_rerank_request(body.dump());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_GE(parsed->embed.answer_bytes, with_documents ? 2 * printed - 10'000 : printed);
    EXPECT_LE(parsed->embed.answer_bytes, 2 * printed + 2000) << "kept and printed";
  }
}

TEST_F(HttpScores, AClientThatLeavesCancelsItsInputs) {
  start();
  HttpClient client(port());
  client.send(print_post("/v1/rerank", R"({"query":"a","documents":["b"]})"));
  ASSERT_TRUE(fake.engine->wait_for_requests(2));
  client.close();
  EXPECT_TRUE(fake.engine->wait_for_cancel(0));
  EXPECT_TRUE(fake.engine->wait_for_cancel(1));
}

TEST_F(HttpScores, RefuseByNameWhatTheyCannotDo) {
  start_answering();
  struct Refused {
    std::string path;
    json body;
    std::string param;
    std::string message;
  };
  const json many(std::vector<std::string>(2049, "a"));
  const json most(std::vector<std::string>(2048, "a"));
  const std::string longest(100'001, 'x');
  for (const Refused& one : std::vector<Refused>{
           {"/v1/rerank", {{"documents", {"a"}}}, "query", "query is missing"},
           {"/v1/rerank", {{"query", "a"}}, "documents", "documents is missing"},
           {"/v1/rerank", {{"query", {"a"}}, {"documents", {"a"}}}, "query", "one text"},
           {"/v1/rerank", {{"query", "a"}, {"documents", json::array()}}, "documents", "0 texts"},
           {"/v1/rerank", {{"query", "a"}, {"documents", many}}, "documents", "2049 texts"},
           {"/v1/rerank", {{"query", "a"}, {"documents", most}}, "documents", "2049 inputs"},
           {"/v1/rerank", {{"query", "a"}, {"documents", {"a", 5}}}, "documents[1]", "not 5"},
           {"/v1/rerank",
            {{"query", "a"}, {"documents", {{{"title", "a"}}}}},
            "documents[0].text",
            "is missing"},
           {"/v1/rerank",
            {{"query", "a"}, {"documents", {{{"text", "a"}, {"title", "b"}}}}},
            "documents[0].title",
            "not known"},
           {"/v1/rerank",
            {{"query", {{"type", "image_url"}, {"text", ""}}}, {"documents", "a"}},
            "query.type",
            "only texts"},
           {"/v1/rerank",
            {{"query", "a"}, {"documents", {"b", longest}}},
            "documents",
            "documents[1] has 100002 tokens"},
           {"/v1/rerank", {{"query", longest}, {"documents", "b"}}, "query", "query has 100002"},
           {"/v1/rerank", {{"query", "a"}, {"documents", "b"}, {"top_n", -1}}, "top_n", "from 0"},
           {"/v1/rerank",
            {{"query", "a"}, {"documents", "b"}, {"max_tokens_per_doc", 9}},
            "max_tokens_per_doc",
            "not known"},
           {"/v1/rerank",
            {{"query", "a"}, {"documents", "b"}, {"normalize", false}},
            "normalize",
            "not known"},
           {"/v1/rerank",
            {{"query", "a"}, {"documents", "b"}, {"model", "gpt"}},
            "model",
            "does not exist"},
           {"/v1/score", json::object(), "text_1", "text_1 is missing"},
           {"/v1/score", {{"items", "a"}}, "queries", "queries is missing"},
           {"/v1/score", {{"text_1", "a"}, {"items", "a"}}, "text_2", "text_2 is missing"},
           {"/v1/score", {{"text_1", "a"}, {"text_2", "a"}, {"items", "a"}}, "items", "not known"},
           {"/v1/score",
            {{"text_1", {"a", "b"}}, {"text_2", {"a", "b", "c"}}},
            "text_1",
            "text_1 has 2 texts and text_2 has 3"},
           {"/v1/score", {{"text_1", {"a", "b"}}, {"text_2", "c"}}, "text_1", "has 2 texts"},
           {"/v1/score", {{"text_1", {{1, 2}}}, {"text_2", "c"}}, "text_1[0]", "not a list of 2"},
           {"/v1/score",
            {{"queries", {"a", "b"}}, {"items", {"c", longest}}},
            "items",
            "items[1] has 100002"},
           {"/v1/score", {{"text_1", "a"}, {"text_2", "c"}, {"top_n", 1}}, "top_n", "not known"}}) {
    const HttpClientResponse response = ask(one.path, one.body);
    const json error = json::parse(response.body).value("error", json::object());
    EXPECT_EQ(response.status, one.param == "model" ? 404 : 400) << one.message;
    EXPECT_EQ(error.value("param", ""), one.param);
    EXPECT_THAT(error.value("message", ""), HasSubstr(one.message));
  }
  EXPECT_EQ(fake.engine->requests(), 0u);
}

}  // namespace
}  // namespace tessera
