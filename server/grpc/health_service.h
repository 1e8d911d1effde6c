#pragma once

#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "grpc/health/v1/health.pb.h"
#include "server/grpc/call_limits.h"
#include "server/grpc/call_service.h"

namespace tessera {

// Implements grpc.health.v1.Health for the server as a whole and for its services, which all have
// the same status. Needs no API key, so its calls make way for others (open_calls.h). Must outlive
// every call.
class HealthService final : public CallService {
 public:
  // `services`: full names.
  HealthService(std::set<std::string> services, const CallLimits& limits);
  ~HealthService() override;

  // Tells watchers. Thread-safe.
  void set_serving(bool serving);

  // Ends the calls of watchers, and those that come later. Thread-safe.
  void stop();

 private:
  class Watcher;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  absl::Status check(const std::string& service, grpc::health::v1::HealthCheckResponse& response);
  void list(grpc::health::v1::HealthListResponse& response);
  bool knows(const std::string& service) const { return services_.contains(service); }
  Status status() const;  // requires mutex_

  std::set<std::string> services_;
  const CallLimits limits_;
  std::mutex mutex_;  // guards the fields below, and those of the watchers
  bool serving_ = true;
  bool stopped_ = false;
  std::set<Watcher*> watchers_;
};

}  // namespace tessera
