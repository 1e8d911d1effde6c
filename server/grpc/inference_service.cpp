#include "server/grpc/inference_service.h"

#include <memory>

#include "models/status_macros.h"
#include "server/grpc/authorization.h"
#include "server/grpc/wire.h"

namespace tessera {
namespace {

grpc::ServerUnaryReactor* reply(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(to_grpc(status));
  return reactor;
}

absl::Status tokenize(const Service& service, const v1::TokenizeRequest& request,
                      v1::TokenizeResponse& response) {
  TESSERA_ASSIGN_OR_RETURN(const TokenizeCall call, parse_tokenize_request(request));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                           service.tokenize(call.prompt, call.options));
  response.mutable_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status detokenize(const Service& service, const v1::DetokenizeRequest& request,
                        v1::DetokenizeResponse& response) {
  TESSERA_ASSIGN_OR_RETURN(
      *response.mutable_text(),
      service.detokenize({request.ids().data(), static_cast<std::size_t>(request.ids_size())}));
  return absl::OkStatus();
}

}  // namespace

InferenceService::InferenceService(tessera::Service& service, const ApiKeys& keys,
                                   std::size_t max_pending_tokens)
    : service_(service), keys_(keys), shared_{service, calls_, writer_, max_pending_tokens} {}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const auto caller = authorize(keys_, *context);
  return caller.ok() ? GenerateCall::start(shared_, *context, *request, *caller)
                     : GenerateCall::refuse(shared_, *context, caller.status());
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context,
                                                  const v1::AbortRequest* request,
                                                  v1::AbortResponse* response) {
  const auto caller = authorize(keys_, *context);
  if (caller.ok()) {
    const std::shared_ptr<GenerateCall> call =
        calls_.find((*caller)->tenant_id, request->request_id());
    if (call != nullptr) {
      call->abort();
    }
    response->set_found(call != nullptr);
  }
  return reply(context, caller.status());
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const absl::Status authorized = authorize(keys_, *context).status();
  return reply(context, authorized.ok() ? tokenize(service_, *request, *response) : authorized);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  const absl::Status authorized = authorize(keys_, *context).status();
  return reply(context, authorized.ok() ? detokenize(service_, *request, *response) : authorized);
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(grpc::CallbackServerContext* context,
                                                         const v1::GetModelInfoRequest*,
                                                         v1::GetModelInfoResponse* response) {
  const absl::Status authorized = authorize(keys_, *context).status();
  if (authorized.ok()) {
    *response = model_info(service_);
  }
  return reply(context, authorized);
}

grpc::ServerUnaryReactor* InferenceService::GetServerInfo(grpc::CallbackServerContext* context,
                                                          const v1::GetServerInfoRequest*,
                                                          v1::GetServerInfoResponse* response) {
  const absl::Status authorized = authorize(keys_, *context).status();
  if (authorized.ok()) {
    *response = server_info(service_);
  }
  return reply(context, authorized);
}

grpc::ServerUnaryReactor* InferenceService::GetCacheInfo(grpc::CallbackServerContext* context,
                                                         const v1::GetCacheInfoRequest*,
                                                         v1::GetCacheInfoResponse* response) {
  const absl::Status authorized = authorize(keys_, *context).status();
  if (authorized.ok()) {
    *response = cache_info(service_);
  }
  return reply(context, authorized);
}

grpc::ServerUnaryReactor* InferenceService::FlushCache(grpc::CallbackServerContext* context,
                                                       const v1::FlushCacheRequest*,
                                                       v1::FlushCacheResponse*) {
  const absl::Status authorized = authorize(keys_, *context, /*admin=*/true).status();
  if (authorized.ok()) {
    service_.engine().flush_cache();
  }
  return reply(context, authorized);
}

}  // namespace tessera
