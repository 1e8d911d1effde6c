#include "server/grpc/health_service.h"

#include <utility>

#include "server/grpc/unary_call.h"
#include "server/grpc/wire.h"

namespace tessera {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using grpc::health::v1::HealthListRequest;
using grpc::health::v1::HealthListResponse;

// One Watch call. gRPC owns it from its creation to OnDone.
class HealthService::Watcher final
    : public grpc::ServerBidiReactor<HealthCheckRequest, HealthCheckResponse> {
 public:
  Watcher(HealthService& service, grpc::CallbackServerContext& context, OpenCalls::Place place)
      : service_(service), context_(context), place_(std::move(place)) {
    service_.limits_.unread.begin(context_, service_.limits_.request_bytes);
    StartRead(&request_);
  }

  // Requires: the service's mutex. Writes a new status, or ends the call of a stopped server.
  void advance() {
    if (writing_ || ended_) {
      return;
    }
    if (gone_ || service_.stopped_) {
      ended_ = true;
      Finish(gone_ ? grpc::Status::CANCELLED
                   : grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
      return;
    }
    const Status now = known_ ? service_.status() : HealthCheckResponse::SERVICE_UNKNOWN;
    if (now != response_.status()) {  // at first it is UNKNOWN, which is never sent
      response_.set_status(now);
      writing_ = true;
      StartWrite(&response_);
    }
  }

 private:
  void OnReadDone(bool ok) override {
    service_.limits_.unread.end(context_);
    const std::lock_guard lock(service_.mutex_);
    if (!ok) {
      ended_ = true;
      return Finish(to_grpc(no_message()));
    }
    known_ = service_.knows(request_.service());
    service_.watchers_.insert(this);
    advance();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(service_.mutex_);
    writing_ = false;
    gone_ = gone_ || !ok;
    advance();
  }

  void OnCancel() override {
    const std::lock_guard lock(service_.mutex_);
    gone_ = true;
    if (service_.watchers_.contains(this)) {
      advance();
    }
  }

  void OnDone() override {
    service_.limits_.unread.end(context_);
    place_.release();
    {
      const std::lock_guard lock(service_.mutex_);
      service_.watchers_.erase(this);
    }
    delete this;
  }

  HealthService& service_;
  grpc::CallbackServerContext& context_;
  OpenCalls::Place place_;
  HealthCheckRequest request_;
  HealthCheckResponse response_;  // sent last
  bool known_ = false;            // the request's service
  bool writing_ = false;
  bool gone_ = false;
  bool ended_ = false;
};

HealthService::HealthService(std::set<std::string> services, const CallLimits& limits)
    : services_(std::move(services)), limits_(limits) {
  services_.insert("");
  using grpc::CallbackServerContext;
  using CheckCall = UnaryCall<HealthCheckRequest, HealthCheckResponse>;
  using ListCall = UnaryCall<HealthListRequest, HealthListResponse>;
  const auto place = [this](CallbackServerContext& context) {
    return *limits_.open.take(context, /*has_caller=*/false);
  };
  add_method<HealthCheckRequest, HealthCheckResponse>(
      "/grpc.health.v1.Health/Check", [this, place](CallbackServerContext& context) {
        return new CheckCall(limits_, context, place(context), [this](CheckCall& call) {
          call.reply(check(call.request().service(), call.response()));
        });
      });
  add_method<HealthListRequest, HealthListResponse>(
      "/grpc.health.v1.Health/List", [this, place](CallbackServerContext& context) {
        return new ListCall(limits_, context, place(context), [this](ListCall& call) {
          list(call.response());
          call.reply(absl::OkStatus());
        });
      });
  add_method<HealthCheckRequest, HealthCheckResponse>(
      "/grpc.health.v1.Health/Watch", [this, place](CallbackServerContext& context) {
        return new Watcher(*this, context, place(context));
      });
}

HealthService::~HealthService() = default;

HealthService::Status HealthService::status() const {
  return serving_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::set_serving(bool serving) {
  const std::lock_guard lock(mutex_);
  serving_ = serving;
  for (Watcher* watcher : watchers_) {
    watcher->advance();
  }
}

void HealthService::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (Watcher* watcher : watchers_) {
    watcher->advance();
  }
}

absl::Status HealthService::check(const std::string& service, HealthCheckResponse& response) {
  if (!knows(service)) {
    return absl::NotFoundError("this server has no service of that name");
  }
  const std::lock_guard lock(mutex_);
  response.set_status(status());
  return absl::OkStatus();
}

void HealthService::list(HealthListResponse& response) {
  const std::lock_guard lock(mutex_);
  for (const std::string& service : services_) {
    (*response.mutable_statuses())[service].set_status(status());
  }
}

}  // namespace tessera
