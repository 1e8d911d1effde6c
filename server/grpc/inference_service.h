#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "server/base/request_work.h"
#include "server/generation/service.h"
#include "server/grpc/call_limits.h"
#include "server/grpc/call_service.h"
#include "server/grpc/call_table.h"
#include "server/grpc/embed_call.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/stream_writer.h"
#include "server/tenants/api_keys.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// Implements tessera.v1.Inference. Every call requires an API key if there are keys, and is refused
// without one before its message is read. Work that grows with a request runs on the work pool.
// `service`, `keys` and the targets of `limits` and `work` must outlive this, and this must outlive
// every call.
class InferenceService final : public CallService {
 public:
  InferenceService(tessera::Service& service, const ApiKeys& keys, const CallLimits& limits,
                   RequestWork work);

  CallTable& calls() { return calls_; }

 private:
  // compute: a use that counts in its tenant's rate of requests
  enum class Right : uint8_t { use, compute, administer };
  struct Admitted {
    std::shared_ptr<const Caller> caller;
    OpenCalls::Place place;
  };

  void add_unary_methods();
  void add_information();
  absl::StatusOr<Admitted> admit(grpc::CallbackServerContext& context, Right right) const;
  OpenCalls::Place place_of_refused(grpc::CallbackServerContext& context) const;
  template <class Request, class Response, class Answer>
  void add_unary(const char* path, Right right, Answer answer);
  template <class Call, class Work>
  void reply_later(const Caller& caller, Call& call, Work work);
  grpc::ServerBidiReactor<v1::GenerateRequest, v1::GenerateResponse>* generate(
      grpc::CallbackServerContext& context);
  grpc::ServerBidiReactor<v1::EmbedRequest, v1::EmbedResponse>* embed(
      grpc::CallbackServerContext& context);

  tessera::Service& service_;
  const ApiKeys& keys_;
  const RequestWork work_;
  const CallLimits limits_;
  CallTable calls_;
  StreamWriter writer_;
  const GenerateCall::Shared generate_shared_;
  const EmbedCall::Shared embed_shared_;
};

}  // namespace tessera
