// The table of routes: each line's method, key and need of the model.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "server/routes/route_table.h"
#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

class HttpRoutes : public HttpFixture {
 protected:
  // Listens without a model.
  void start_loading(RoutesOptions options = {}) {
    routes = std::make_unique<Routes>(std::move(options));
    auto started = HttpListener::start({.port = 0}, *routes, fake.work);
    ASSERT_TRUE(started.ok()) << started.status();
    listener = *std::move(started);
  }

  int status(std::string_view method, const Route& route) {
    std::string path(route.path);
    if (path.ends_with('*')) {
      path.back() = 'x';
    }
    HttpClient client(port());
    return method == "POST" ? client.post(path, "{}").status
                            : client.request(std::string(method), path).status;
  }
};

TEST_F(HttpRoutes, HaveAPathAndMethodEach) {
  std::set<std::pair<std::string_view, std::string_view>> lines;
  for (const Route& route : kRoutes) {
    EXPECT_TRUE(lines.emplace(route.method, route.path).second) << route.path;
    EXPECT_TRUE(route.method == "GET" || route.method == "POST" || route.method == "DELETE")
        << route.path;
  }
}

TEST_F(HttpRoutes, WantAKeyUnlessTheirLineSaysOpen) {
  start_loading({.api_keys = ApiKeys({"secret"})});
  for (const Route& route : kRoutes) {
    EXPECT_EQ(status(route.method, route) == 401, route.access != Access::open) << route.path;
  }
}

TEST_F(HttpRoutes, AnswerTheirMethodsOnly) {
  start_loading();
  for (const Route& route : kRoutes) {
    EXPECT_EQ(status("PUT", route), 405) << route.path;
    EXPECT_NE(status(route.method, route), 405) << route.path;
  }
}

TEST_F(HttpRoutes, WaitForTheModelIfTheirEndpointTakesIt) {
  start_loading();
  for (const Route& route : kRoutes) {
    const bool plain = std::holds_alternative<PlainEndpoint>(route.endpoint);
    EXPECT_EQ(status(route.method, route), plain ? 200 : 503) << route.path;
  }
  routes->attach(*fake.service);
  for (const Route& route : kRoutes) {
    EXPECT_NE(status(route.method, route), 503) << route.path;
  }
}

// Clients of OpenAI's dialect add "/chat/completions" to a base URL that may lack "/v1".
TEST_F(HttpRoutes, OfferOpenAIsDialectWithoutTheVersionToo) {
  std::set<std::string_view> found;
  for (const Route& route : kRoutes) {
    for (const std::string_view stem :
         {"completions", "chat", "embeddings", "models", "responses", "score", "rerank"}) {
      if (!route.path.starts_with("/v1/") || !route.path.substr(4).starts_with(stem)) {
        continue;
      }
      const std::string_view path = route.path.substr(3);
      const auto twin = std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& one) {
        return one.path == path && one.method == route.method;
      });
      ASSERT_NE(twin, std::end(kRoutes)) << route.method << " " << path;
      EXPECT_EQ(twin->endpoint, route.endpoint) << path;
      EXPECT_EQ(twin->access, route.access) << path;
      EXPECT_EQ(twin->work, route.work) << path;
      found.insert(stem);
    }
  }
  EXPECT_EQ(found.size(), 7u);
}

TEST_F(HttpRoutes, AnswerWithoutTheVersionAsWithIt) {
  fake.engine->answer_with([](const EngineRequest&) { return "hi"; });
  start();
  HttpClient client(port());
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}]})";
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/completions", R"({"prompt":"a"})"},
           {"/chat/completions", chat},
           {"/embeddings", R"({"input":"a"})"},
           {"/score", R"({"text_1":"a","text_2":"b"})"},
           {"/rerank", R"({"query":"a","documents":["b"]})"},
           {"/responses", R"({"input":"a"})"}}) {
    EXPECT_EQ(client.post(path, body).status, 200) << path;
    EXPECT_EQ(client.post(path, R"({"unknown":1})").status, 400) << path;
    EXPECT_EQ(client.get(path).status, 405) << path;
  }
  EXPECT_EQ(client.get("/models/alias").body, client.get("/v1/models/alias").body);
  EXPECT_EQ(client.get("/models/other").status, 404);
}

}  // namespace
}  // namespace tessera
