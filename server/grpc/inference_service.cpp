#include "server/grpc/inference_service.h"

#include <memory>
#include <utility>

#include "models/status_macros.h"
#include "server/grpc/authorization.h"
#include "server/grpc/call_context.h"
#include "server/grpc/embed_call.h"
#include "server/grpc/wire.h"

namespace tessera {
namespace {

constexpr const char* kBusy = "too many requests wait to be read: try again later";

grpc::ServerUnaryReactor* reply(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  add_retry(*context, status);
  reactor->Finish(to_grpc(status));
  return reactor;
}

// Answers with one message, which is computed later. gRPC owns it from its creation to OnDone.
// Until then it holds the room of the request and of the answer.
class LaterReply final : public grpc::ServerUnaryReactor {
 public:
  LaterReply(UnreadMessages& unread, grpc::CallbackServerContext& context,
             ByteBudget::Share request_room)
      : unread_(unread), context_(context), request_room_(std::move(request_room)) {}

  ByteBudget::Share& room() { return room_; }

  void finish(const absl::Status& status, const google::protobuf::MessageLite& response) {
    unread_.begin(context_, response.ByteSizeLong());
    Finish(to_grpc(status));
  }

 private:
  void OnDone() override {
    unread_.end(context_);
    delete this;
  }

  UnreadMessages& unread_;
  grpc::CallbackServerContext& context_;
  const ByteBudget::Share request_room_;
  ByteBudget::Share room_;
};

absl::Status tokenize(const Service& service, const v1::TokenizeRequest& request,
                      const Caller& caller, v1::TokenizeResponse& response,
                      ByteBudget::Share& room) {
  TESSERA_ASSIGN_OR_RETURN(const TokenizeCall call, parse_tokenize_request(request));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                           service.tokenize(call.prompt, call.options));
  service.charge_text(caller, ids.size());
  TESSERA_ASSIGN_OR_RETURN(room, service.text_room().for_tokens(ids, call.texts));
  response.mutable_ids()->Assign(ids.begin(), ids.end());
  if (call.texts) {
    for (const int32_t id : ids) {
      response.add_texts(service.tokenizer().token_bytes(id, /*keep_special=*/true));
    }
  }
  return absl::OkStatus();
}

absl::Status detokenize(const Service& service, const v1::DetokenizeRequest& request,
                        const Caller& caller, v1::DetokenizeResponse& response,
                        ByteBudget::Share& room) {
  TESSERA_ASSIGN_OR_RETURN(
      *response.mutable_text(),
      service.detokenize({request.ids().data(), static_cast<std::size_t>(request.ids_size())},
                         &room));
  service.charge_text(caller, static_cast<std::size_t>(request.ids_size()));
  return absl::OkStatus();
}

}  // namespace

InferenceService::InferenceService(tessera::Service& service, const ApiKeys& keys,
                                   std::size_t max_pending_tokens,
                                   std::chrono::milliseconds write_timeout, RequestWork work)
    : service_(service),
      keys_(keys),
      work_(work),
      unread_(write_timeout),
      shared_{service, calls_, writer_, unread_, max_pending_tokens, work.pool} {}

// gRPC counts a message's bytes only until it is parsed, and keeps it until the call is done.
// Returns: the room of a parsed request.
// Errors: Unavailable if the others leave it none.
absl::StatusOr<ByteBudget::Share> InferenceService::room_for(
    const google::protobuf::Message& request) const {
  return take_bytes(&work_.budget, request.SpaceUsedLong());
}

// Runs `call`, which takes the caller and the room of its answer, on the work pool and finishes
// with its status. Request, response and context live until then.
template <class Call>
grpc::ServerUnaryReactor* InferenceService::reply_later(
    grpc::CallbackServerContext* context, const google::protobuf::Message& request,
    const google::protobuf::MessageLite& response, Call call) {
  const auto caller = authorize(keys_, *context);
  if (!caller.ok()) {
    return reply(context, caller.status());
  }
  if (const absl::Status admitted = service_.admit(**caller); !admitted.ok()) {
    return reply(context, admitted);
  }
  auto room = room_for(request);
  if (!room.ok()) {
    return reply(context, room.status());
  }
  const std::size_t bytes = room->bytes();
  auto* reactor = new LaterReply(unread_, *context, *std::move(room));
  if (!work_.pool.submit((*caller)->turn_name(), bytes,
                         [reactor, &response, call, caller = *caller] {
                           reactor->finish(call(*caller, reactor->room()), response);
                         })) {
    reactor->finish(absl::UnavailableError(kBusy), response);
  }
  return reactor;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const auto caller = authorize(keys_, *context);
  if (!caller.ok()) {
    return GenerateCall::refuse(shared_, *context, caller.status());
  }
  if (const absl::Status admitted = service_.admit(**caller); !admitted.ok()) {
    const auto call = GenerateCall::make(shared_, *context, *caller, {});
    call->finish_early(admitted);
    return call.get();
  }
  auto room = room_for(*request);
  if (!room.ok()) {
    return GenerateCall::refuse(shared_, *context, room.status());
  }
  const std::size_t bytes = room->bytes();
  const std::shared_ptr<GenerateCall> call =
      GenerateCall::make(shared_, *context, *caller, *std::move(room));
  // The call owns its writing side until start() returns, so gRPC keeps request and context.
  if (!work_.pool.submit((*caller)->turn_name(), bytes,
                         [call, request] { call->start(*request); })) {
    call->finish_early(absl::UnavailableError(kBusy));
  }
  return call.get();
}

grpc::ServerUnaryReactor* InferenceService::Embed(grpc::CallbackServerContext* context,
                                                  const v1::EmbedRequest* request,
                                                  v1::EmbedResponse* response) {
  const auto caller = authorize(keys_, *context);
  if (!caller.ok()) {
    return reply(context, caller.status());
  }
  const EmbedCall::Shared shared{service_, calls_, writer_, unread_};
  if (const absl::Status admitted = service_.admit(**caller); !admitted.ok()) {
    const auto call = EmbedCall::make(shared, *context, *caller, {}, *response);
    call->finish(admitted);
    return call.get();
  }
  auto room = room_for(*request);
  if (!room.ok()) {
    return reply(context, room.status());
  }
  const std::size_t bytes = room->bytes();
  const std::shared_ptr<EmbedCall> call =
      EmbedCall::make(shared, *context, *caller, *std::move(room), *response);
  // gRPC keeps request, response and context until the call is finished.
  if (!work_.pool.submit((*caller)->turn_name(), bytes,
                         [call, request] { call->start(*request); })) {
    call->finish(absl::UnavailableError(kBusy));
  }
  return call.get();
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
  return reply_later(context, *request, *response,
                     [this, request, response](const Caller& caller, ByteBudget::Share& room) {
                       return tokenize(service_, *request, caller, *response, room);
                     });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return reply_later(context, *request, *response,
                     [this, request, response](const Caller& caller, ByteBudget::Share& room) {
                       return detokenize(service_, *request, caller, *response, room);
                     });
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
