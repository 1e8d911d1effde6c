#include "server/server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/status_macros.h"
#include "server/base/authority.h"
#include "server/base/byte_budget.h"
#include "server/base/memory_guard.h"
#include "server/base/work_pool.h"
#include "server/generation/service.h"
#include "server/grammar/grammar_store.h"
#include "server/grpc/grpc_listener.h"
#include "server/http/listener.h"
#include "server/http/origin_check.h"
#include "server/kv_events/kv_event_publisher.h"
#include "server/routes/routes.h"
#include "server/start/model_parts.h"
#include "server/start/process_limits.h"
#include "server/start/request_memory.h"
#include "server/telemetry/metrics.h"
#include "server/tenants/api_keys.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Poll interval of a draining server.
constexpr milliseconds kDrainPoll{20};

// Time for the first call of a connection that was made just before gRPC's port closes.
constexpr milliseconds kLastCallTime{500};

// Time for a client to read the end of a complete answer.
constexpr milliseconds kFlushTime{5'000};
constexpr milliseconds kHurriedFlushTime{500};

class WholeServer final : public Server {
 public:
  WholeServer(const Settings& settings, Communicator* ranks)
      : settings_(settings),
        ranks_(ranks),
        pool_(settings.threads),
        budget_(request_memory_of(settings, 0).bodies),
        work_(settings.work, {&pool_.loops(), pool_.threads()}) {}

  ~WholeServer() override {
    if (service_ != nullptr) {
      service_->engine().stop();
    }
  }

  absl::Status start() {
    const Clock::time_point begin = Clock::now();
    TESSERA_ASSIGN_OR_RETURN(keys_, ApiKeys::load(key_sources(), everyone()));
    TESSERA_ASSIGN_OR_RETURN(
        const ConnectionLimits connections,
        share_descriptors({settings_.http.max_connections, settings_.grpc.max_connections}));
    RoutesOptions routes = settings_.routes;
    routes.api_keys = keys_;
    routes.loopback = is_loopback(settings_.http.address);
    if (!keys_.locked() && !routes.loopback) {
      spdlog::warn("without an API key, every client that reaches {} can use this server",
                   settings_.http.address);
    }
    routes_ = std::make_unique<Routes>(std::move(routes));
    HttpOptions http = settings_.http;
    http.max_connections = connections.http;
    tell_memory(connections.http);
    TESSERA_ASSIGN_OR_RETURN(http_, HttpListener::start(http, *routes_, {budget_, work_}));
    const bool tls = !settings_.http.tls_certificate.empty();
    spdlog::info("listening {}://{}", tls ? "https" : "http",
                 authority(settings_.http.address, http_->port()));
    TESSERA_RETURN_IF_ERROR(load());
    service_->engine().start();
    TESSERA_RETURN_IF_ERROR(
        check_address_space(request_memory_of(settings_, connections.http).total()));
    routes_->attach(*service_);
    service_->watch_memory({.name = "http_connections",
                            .bytes =
                                [http = http_.get(), each = http_connection_bytes(settings_)] {
                                  return static_cast<int64_t>(http->connections() * each);
                                },
                            .shrink = nullptr});
    GrpcOptions grpc = settings_.grpc;
    grpc.address = settings_.http.address;
    grpc.max_connections = connections.grpc;
    grpc.memory_bytes = request_memory_of(settings_, 0).messages;
    grpc.call_bytes = request_memory_of(settings_, 0).calls;
    grpc.api_keys = keys_;
    grpc.tls_certificate = settings_.http.tls_certificate;
    grpc.tls_key = settings_.http.tls_key;
    TESSERA_ASSIGN_OR_RETURN(grpc_, GrpcListener::start(grpc, *service_, {budget_, work_}));
    spdlog::info("listening grpc://{}", authority(settings_.http.address, grpc_->port()));
    spdlog::info("ready after {:.1f} s",
                 std::chrono::duration<double>(Clock::now() - begin).count());
    return absl::OkStatus();
  }

  void reload() override {
    const absl::Status keys = keys_.reload(key_sources(), everyone());
    const absl::Status tls = http_->reload_tls();
    for (const absl::Status& status : {keys, tls}) {
      if (!status.ok()) {
        spdlog::error("reload: {}; nothing of it has changed", std::string(status.message()));
      }
    }
    if (keys.ok() && tls.ok()) {
      spdlog::info("reload: keys and certificates were read again");
    }
  }

  void shut_down(StopSignals& signals) override {
    spdlog::info("not ready any more; new requests are taken for another {} ms",
                 settings_.drain_delay.count());
    service_->set_not_ready();
    grpc_->set_not_serving();
    const bool hurry = !take_last_requests(signals) || !finish_what_runs(signals);
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
    parts.queue_timeout = settings_.queue_timeout;
    parts.memory_limit = settings_.max_memory > 0 ? settings_.max_memory : memory_limit_of_group();
    parts.budget = &budget_;
    parts.grammar_memory = request_memory_of(settings_, 0).grammars;
    parts.max_answer_bytes = settings_.max_answer;
    parts.pooling = settings_.pooling;
    parts.engine_load = {&pool_.loops(), pool_.threads()};
    service_ = std::make_unique<Service>(std::move(parts));
    if (reports) {
      TESSERA_ASSIGN_OR_RETURN(kv_events_,
                               KvEventPublisher::start(settings.kv_events, prefix_events_));
    }
    return absl::OkStatus();
  }

  KeySources key_sources() const {
    return {settings_.api_keys, settings_.api_key_file, settings_.tenant_file};
  }
  // Limits of a server without a tenant file.
  TenantLimits everyone() const {
    TenantLimits limits;
    limits.priority_min = -settings_.max_priority;
    limits.priority_max = settings_.max_priority;
    limits.pin_ttl = std::chrono::duration_cast<std::chrono::seconds>(settings_.max_pin_ttl);
    return limits;
  }

  void tell_memory(std::size_t http_connections) const {
    constexpr double kMib = 1 << 20;
    const RequestMemory memory = request_memory_of(settings_, http_connections);
    spdlog::info(
        "memory of requests, at most: {:.0f} MiB of bodies and answers, {:.0f} MiB of grammars, "
        "{:.0f} MiB while {} threads compile them, {:.0f} MiB of gRPC's calls, {:.0f} MiB of its "
        "messages, {:.0f} MiB while {} threads "
        "parse, {:.0f} MiB of {} HTTP connections, {:.0f} MiB of stored responses",
        static_cast<double>(memory.bodies) / kMib, static_cast<double>(memory.grammars) / kMib,
        static_cast<double>(memory.compiling) / kMib, kCompileThreads,
        static_cast<double>(memory.calls) / kMib, static_cast<double>(memory.messages) / kMib,
        static_cast<double>(memory.parsing) / kMib, settings_.work.threads,
        static_cast<double>(memory.connections) / kMib, http_connections,
        static_cast<double>(memory.responses) / kMib);
  }

  // A proxy that opens a connection for each call of gRPC tries another server if this one refuses
  // the connection, but not if it refuses the call. So the port closes first, and calls are taken
  // for a little longer.
  // Returns: false if a signal arrived.
  bool take_last_requests(StopSignals& signals) {
    const milliseconds last = std::min(settings_.drain_delay / 2, kLastCallTime);
    if (signals.wait_for(settings_.drain_delay - last)) {
      return false;
    }
    grpc_->close_port();
    return !signals.wait_for(last);
  }

  // Returns: false if a signal arrived.
  bool finish_what_runs(StopSignals& signals) {
    grpc_->stop_accepting();
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
  ApiKeys keys_;
  ByteBudget budget_;
  WorkPool work_;
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
