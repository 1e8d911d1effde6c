#include "server/server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "models/status_macros.h"
#include "server/api_keys.h"
#include "server/authority.h"
#include "server/grpc/grpc_listener.h"
#include "server/http/listener.h"
#include "server/http/routes.h"
#include "server/kv_events/kv_event_publisher.h"
#include "server/metrics.h"
#include "server/model_parts.h"
#include "server/service.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Poll interval of a draining server.
constexpr milliseconds kDrainPoll{20};

// Time for a client to read the end of a complete answer.
constexpr milliseconds kFlushTime{5'000};
constexpr milliseconds kHurriedFlushTime{500};

class WholeServer final : public Server {
 public:
  WholeServer(const Settings& settings, Communicator* ranks)
      : settings_(settings), ranks_(ranks), pool_(settings.threads) {}

  ~WholeServer() override {
    if (service_ != nullptr) {
      service_->engine().stop();
    }
  }

  absl::Status start() {
    const Clock::time_point begin = Clock::now();
    TESSERA_ASSIGN_OR_RETURN(const ApiKeys keys,
                             ApiKeys::load(settings_.api_keys, settings_.api_key_file));
    RoutesOptions routes = settings_.routes;
    routes.api_keys = keys;
    routes_ = std::make_unique<Routes>(std::move(routes));
    TESSERA_ASSIGN_OR_RETURN(http_, HttpListener::start(settings_.http, *routes_));
    const bool tls = !settings_.http.tls_certificate.empty();
    spdlog::info("listening {}://{}", tls ? "https" : "http",
                 authority(settings_.http.address, http_->port()));
    TESSERA_RETURN_IF_ERROR(load());
    service_->engine().start();
    routes_->attach(*service_);
    GrpcOptions grpc = settings_.grpc;
    grpc.address = settings_.http.address;
    grpc.api_keys = keys;
    grpc.tls_certificate = settings_.http.tls_certificate;
    grpc.tls_key = settings_.http.tls_key;
    TESSERA_ASSIGN_OR_RETURN(grpc_, GrpcListener::start(grpc, *service_));
    spdlog::info("listening grpc://{}", authority(settings_.http.address, grpc_->port()));
    spdlog::info("ready after {:.1f} s",
                 std::chrono::duration<double>(Clock::now() - begin).count());
    return absl::OkStatus();
  }

  void shut_down(StopSignals& signals) override {
    spdlog::info("not ready any more; new requests are taken for another {} ms",
                 settings_.drain_delay.count());
    service_->set_not_ready();
    grpc_->set_not_serving();
    const bool hurry = signals.wait_for(settings_.drain_delay) || !finish_what_runs(signals);
    service_->engine().stop();
    const milliseconds flush = hurry ? kHurriedFlushTime : kFlushTime;
    http_->drain(flush);
    grpc_->drain(flush);
    http_->stop();
    grpc_->stop();
    spdlog::info("stopped");
  }

 private:
  absl::Status load() {
    Settings settings = settings_;
    const bool reports = !settings.kv_events.endpoint.empty();
    settings.engine.prefix_events = reports ? &prefix_events_ : nullptr;
    TESSERA_ASSIGN_OR_RETURN(Service::Parts parts, load_model_parts(settings, pool_, ranks_));
    service_ = std::make_unique<Service>(std::move(parts));
    if (reports) {
      TESSERA_ASSIGN_OR_RETURN(kv_events_,
                               KvEventPublisher::start(settings.kv_events, prefix_events_));
    }
    return absl::OkStatus();
  }

  // Returns: false if a signal arrived.
  bool finish_what_runs(StopSignals& signals) {
    service_->drain();
    const Clock::time_point end = Clock::now() + settings_.drain_timeout;
    const EngineStats stats = service_->engine().stats();
    spdlog::info("draining: {} running, {} waiting", stats.running, stats.waiting);
    while (!service_->engine().idle()) {
      if (Clock::now() >= end) {
        spdlog::warn("after {} ms not all requests have finished: they are cancelled",
                     settings_.drain_timeout.count());
        return true;
      }
      if (signals.wait_for(kDrainPoll)) {
        return false;
      }
    }
    return true;
  }

  // The order matters: the engine reports to the listeners' connections until it has stopped, and
  // computes on the pool.
  const Settings settings_;
  Communicator* const ranks_;
  ThreadPool pool_;
  PrefixEvents prefix_events_;
  std::unique_ptr<Routes> routes_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<KvEventPublisher> kv_events_;  // null: not wanted
  std::unique_ptr<HttpListener> http_;
  std::unique_ptr<GrpcListener> grpc_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::start(const Settings& settings,
                                                      Communicator* ranks) {
  auto server = std::make_unique<WholeServer>(settings, ranks);
  TESSERA_RETURN_IF_ERROR(server->start());
  return server;
}

}  // namespace tessera
