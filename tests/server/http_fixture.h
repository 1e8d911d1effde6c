#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/http/listener.h"
#include "server/routes/routes.h"
#include "tests/server/fake_engine.h"
#include "tests/server/http_client.h"

namespace tessera {

// The HTTP front end over a fake engine, on a free port.
class HttpFixture : public testing::Test {
 protected:
  ~HttpFixture() override {
    if (listener) {
      listener->stop();
    }
  }

  void start(HttpOptions options = {}, RoutesOptions routes_options = {}) {
    options.port = 0;
    routes = std::make_unique<Routes>(routes_options);
    routes->attach(*fake.service);
    auto started = HttpListener::start(options, *routes, fake.work);
    ASSERT_TRUE(started.ok()) << started.status();
    listener = *std::move(started);
  }

  uint16_t port() const { return listener->port(); }

  // The listener is declared last: its connections use the other members.
  FakeService fake;
  std::unique_ptr<Routes> routes;
  std::unique_ptr<HttpListener> listener;
};

}  // namespace tessera
