#pragma once

#include <chrono>
#include <cstddef>

#include "server/api_keys.h"
#include "server/grpc/call_table.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/stream_writer.h"
#include "server/grpc/unread_messages.h"
#include "server/request_work.h"
#include "server/service.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera {

// Implements tessera.v1.Inference. Every call requires an API key if there are keys. Work that
// grows with a request runs on the work pool. `service`, `keys` and the targets of `work` must
// outlive this, and this must outlive every call.
class InferenceService final : public v1::Inference::CallbackService {
 public:
  // max_pending_tokens, write_timeout: see GrpcOptions.
  InferenceService(tessera::Service& service, const ApiKeys& keys, std::size_t max_pending_tokens,
                   std::chrono::milliseconds write_timeout, RequestWork work);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const v1::EmbedRequest* request,
                                  v1::EmbedResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetCacheInfo(grpc::CallbackServerContext* context,
                                         const v1::GetCacheInfoRequest* request,
                                         v1::GetCacheInfoResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const v1::FlushCacheRequest* request,
                                       v1::FlushCacheResponse* response) override;

  CallTable& calls() { return calls_; }

 private:
  absl::StatusOr<ByteBudget::Share> room_for(const google::protobuf::Message& request) const;
  template <class Call>
  grpc::ServerUnaryReactor* reply_later(grpc::CallbackServerContext* context,
                                        const google::protobuf::Message& request,
                                        const google::protobuf::MessageLite& response, Call call);

  tessera::Service& service_;
  const ApiKeys& keys_;
  const RequestWork work_;
  CallTable calls_;
  UnreadMessages unread_;
  StreamWriter writer_;
  GenerateCall::Shared shared_;
};

}  // namespace tessera
