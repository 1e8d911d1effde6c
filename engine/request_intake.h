#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/kv/kv_cache.h"
#include "engine/ranks.h"
#include "engine/request_queue.h"
#include "engine/sequence.h"

namespace tessera {

// The way of requests into an engine: client threads submit(), the engine thread receives.
class RequestIntake {
 public:
  // Arguments outlive this. config: of the whole model.
  RequestIntake(const EngineOptions& options, const ModelConfig& config, const KvCache& kv,
                Ranks& ranks);

  absl::StatusOr<RequestId> submit(EngineRequest request);  // any thread; see Engine::submit
  RequestQueue& queue() { return queue_; }
  const RequestQueue& queue() const { return queue_; }

  // Engine thread. Sets the inputs of the next step: from the queue, or by the leader's broadcast.
  void receive(StepInputs& inputs);

 private:
  absl::Status check(const EngineRequest& request) const;
  absl::Status check_adapter(const EngineRequest& request) const;
  std::vector<std::unique_ptr<Sequence>> make_samples(RequestId first_id,
                                                      const EngineRequest& request) const;

  const EngineOptions& options_;
  const ModelConfig& config_;
  const KvCache& kv_;
  Ranks& ranks_;
  RequestQueue queue_;
  std::atomic<RequestId> last_id_ = 0;
};

}  // namespace tessera
