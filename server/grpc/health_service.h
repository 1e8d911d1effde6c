#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"

namespace tessera {

// Implements grpc.health.v1.Health for the server as a whole and for its services, which all have
// the same status. Needs no API key. Must outlive every call.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // `services`: full names.
  explicit HealthService(std::set<std::string> services);
  ~HealthService() override;

  // Tells watchers. Thread-safe.
  void set_serving(bool serving);

  // Ends the calls of watchers, and those that come later. Thread-safe.
  void stop();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::health::v1::HealthListRequest* request,
                                 grpc::health::v1::HealthListResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  bool knows(const std::string& service) const { return services_.contains(service); }
  Status status() const;  // requires mutex_

  std::set<std::string> services_;
  std::mutex mutex_;  // guards the fields below, and those of the watchers
  bool serving_ = true;
  bool stopped_ = false;
  std::set<Watcher*> watchers_;
};

}  // namespace tessera
