#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "load/workload/spec.h"
#include "load/workload/workload.h"

namespace tessera::load {

using WorkloadOr = absl::StatusOr<std::unique_ptr<Workload>>;

// One for each family of workloads. `spec.name` chooses the defaults.
WorkloadOr make_chat_workload(const WorkloadSpec& spec, const ServerTraits& server);
WorkloadOr make_recall_workload(const WorkloadSpec& spec, const ServerTraits& server);
WorkloadOr make_repeat_workload(const WorkloadSpec& spec, const ServerTraits& server);
WorkloadOr make_json_workload(const WorkloadSpec& spec, const ServerTraits& server);
WorkloadOr make_file_workload(const WorkloadSpec& spec, const ServerTraits& server);
WorkloadOr make_trace_workload(const WorkloadSpec& spec, const ServerTraits& server);

// A session of one request.
class SingleRequest final : public Session {
 public:
  explicit SingleRequest(LoadRequest request) : request_(std::move(request)) {}
  LoadRequest next() override { return std::move(request_); }
  std::optional<double> answered(const std::string& /*text*/) override { return std::nullopt; }

 private:
  LoadRequest request_;
};

}  // namespace tessera::load
