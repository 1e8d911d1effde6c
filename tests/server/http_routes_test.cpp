// The table of routes: each line's method, key and need of the model.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "server/http/route_table.h"
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

}  // namespace
}  // namespace tessera
