#include "server/grpc/health_service.h"

#include <utility>

namespace tessera {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using grpc::health::v1::HealthListRequest;
using grpc::health::v1::HealthListResponse;

// One Watch call. gRPC owns it from its creation to OnDone.
class HealthService::Watcher final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService& service, bool known) : service_(service), known_(known) {
    const std::lock_guard lock(service_.mutex_);
    service_.watchers_.insert(this);
    advance();
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
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(service_.mutex_);
    writing_ = false;
    gone_ = gone_ || !ok;
    advance();
  }

  void OnCancel() override {
    const std::lock_guard lock(service_.mutex_);
    gone_ = true;
    advance();
  }

  void OnDone() override {
    {
      const std::lock_guard lock(service_.mutex_);
      service_.watchers_.erase(this);
    }
    delete this;
  }

  HealthService& service_;
  const bool known_;
  HealthCheckResponse response_;  // sent last
  bool writing_ = false;
  bool gone_ = false;
  bool ended_ = false;
};

HealthService::HealthService(std::set<std::string> services) : services_(std::move(services)) {
  services_.insert("");
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

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!knows(request->service())) {
    reactor->Finish({grpc::StatusCode::NOT_FOUND, "this server has no service of that name"});
    return reactor;
  }
  {
    const std::lock_guard lock(mutex_);
    response->set_status(status());
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* HealthService::List(grpc::CallbackServerContext* context,
                                              const HealthListRequest* /*request*/,
                                              HealthListResponse* response) {
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& service : services_) {
      (*response->mutable_statuses())[service].set_status(status());
    }
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext* /*context*/, const HealthCheckRequest* request) {
  return new Watcher(*this, knows(request->service()));
}

}  // namespace tessera
