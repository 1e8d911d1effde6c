#include "server/grpc/inference_service.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "server/grpc/authorization.h"
#include "server/grpc/call_context.h"
#include "server/grpc/unary_call.h"
#include "server/grpc/wire.h"

namespace tessera {
namespace {

absl::Status tokenize(const Service& service, const v1::TokenizeRequest& request,
                      const Caller& caller, v1::TokenizeResponse& response,
                      ByteBudget::Share& room) {
  TESSERA_ASSIGN_OR_RETURN(const TokenizeCall call, parse_tokenize_request(request));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                           service.prompts().tokenize(call.prompt, call.options));
  service.charge_text(caller, ids.size());
  TESSERA_ASSIGN_OR_RETURN(room, service.prompts().text_room().for_tokens(ids, call.texts));
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
      service.prompts().detokenize(
          {request.ids().data(), static_cast<std::size_t>(request.ids_size())}, &room));
  service.charge_text(caller, static_cast<std::size_t>(request.ids_size()));
  return absl::OkStatus();
}

}  // namespace

InferenceService::InferenceService(tessera::Service& service, const ApiKeys& keys,
                                   const CallLimits& limits, RequestWork work)
    : service_(service),
      keys_(keys),
      work_(work),
      limits_(limits),
      generate_shared_{service, calls_, writer_, limits.unread, work_},
      embed_shared_{service, calls_, writer_, limits.unread, work_} {
  using grpc::CallbackServerContext;
  add_method<v1::GenerateRequest, v1::GenerateResponse>(
      "/tessera.v1.Inference/Generate",
      [this](CallbackServerContext& context) { return generate(context); });
  add_method<v1::EmbedRequest, v1::EmbedResponse>(
      "/tessera.v1.Inference/Embed",
      [this](CallbackServerContext& context) { return embed(context); });
  add_unary_methods();
  add_information();
}

void InferenceService::add_unary_methods() {
  add_unary<v1::AbortRequest, v1::AbortResponse>(
      "/tessera.v1.Inference/Abort", Right::use, [this](const Caller& caller, auto& call) {
        const std::shared_ptr<GenerateCall> found =
            calls_.find(caller.tenant_id, call.request().request_id());
        if (found != nullptr) {
          found->abort();
        }
        call.response().set_found(found != nullptr);
        call.reply(absl::OkStatus());
      });
  add_unary<v1::TokenizeRequest, v1::TokenizeResponse>(
      "/tessera.v1.Inference/Tokenize", Right::compute, [this](const Caller& caller, auto& call) {
        reply_later(caller, call, [this, &caller](auto& some) {
          return tokenize(service_, some.request(), caller, some.response(), some.response_room());
        });
      });
  add_unary<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      "/tessera.v1.Inference/Detokenize", Right::compute, [this](const Caller& caller, auto& call) {
        reply_later(caller, call, [this, &caller](auto& some) {
          return detokenize(service_, some.request(), caller, some.response(),
                            some.response_room());
        });
      });
}

void InferenceService::add_information() {
  add_unary<v1::GetModelInfoRequest, v1::GetModelInfoResponse>(
      "/tessera.v1.Inference/GetModelInfo", Right::use, [this](const Caller&, auto& call) {
        call.response() = model_info(service_);
        call.reply(absl::OkStatus());
      });
  add_unary<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
      "/tessera.v1.Inference/GetServerInfo", Right::use, [this](const Caller&, auto& call) {
        call.response() = server_info(service_);
        call.reply(absl::OkStatus());
      });
  add_unary<v1::GetCacheInfoRequest, v1::GetCacheInfoResponse>(
      "/tessera.v1.Inference/GetCacheInfo", Right::use, [this](const Caller&, auto& call) {
        call.response() = cache_info(service_);
        call.reply(absl::OkStatus());
      });
  add_unary<v1::FlushCacheRequest, v1::FlushCacheResponse>(
      "/tessera.v1.Inference/FlushCache", Right::administer, [this](const Caller&, auto& call) {
        service_.engine().flush_cache();
        call.reply(absl::OkStatus());
      });
}

// Returns: who calls, and the place of the call.
// Errors: as authorize() and Service::admit(). ResourceExhausted if there are too many calls.
absl::StatusOr<InferenceService::Admitted> InferenceService::admit(
    grpc::CallbackServerContext& context, Right right) const {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const Caller> caller,
                           authorize(keys_, context, right == Right::administer));
  std::optional<OpenCalls::Place> place = limits_.open.take(context, /*has_caller=*/true);
  if (!place) {
    return absl::ResourceExhaustedError(fmt::format(
        "this server has {} open calls, the most it has: try again later", limits_.open.most()));
  }
  if (right == Right::compute) TESSERA_RETURN_IF_ERROR(service_.admit(*caller));
  return Admitted{std::move(caller), *std::move(place)};
}

OpenCalls::Place InferenceService::place_of_refused(grpc::CallbackServerContext& context) const {
  return *limits_.open.take(context, /*has_caller=*/false);
}

// A method that calls answer(caller, call) when the request has come.
template <class Request, class Response, class Answer>
void InferenceService::add_unary(const char* path, Right right, Answer answer) {
  using Call = UnaryCall<Request, Response>;
  add_method<Request, Response>(
      path,
      [this, right, answer](
          grpc::CallbackServerContext& context) -> grpc::ServerBidiReactor<Request, Response>* {
        absl::StatusOr<Admitted> admitted = admit(context, right);
        if (!admitted.ok()) {
          add_retry(context, admitted.status());
          return new RefusedCall<Request, Response>(admitted.status(), place_of_refused(context));
        }
        return new Call(
            limits_, context, std::move(admitted->place),
            [answer, caller = std::move(admitted->caller)](Call& call) { answer(*caller, call); });
      });
}

// Runs `work`, which takes the room of its answer, on the work pool, and replies with its status.
template <class Call, class Work>
void InferenceService::reply_later(const Caller& caller, Call& call, Work work) {
  absl::StatusOr<ByteBudget::Share> room = room_for(work_, call.request());
  if (!room.ok()) {
    return call.reply(room.status());
  }
  const std::size_t bytes = room->bytes();
  call.request_room() = *std::move(room);
  if (!work_.pool.submit(caller.turn_name(), bytes, [&call, work] { call.reply(work(call)); })) {
    call.reply(absl::UnavailableError(kReadersBusy));
  }
}

grpc::ServerBidiReactor<v1::GenerateRequest, v1::GenerateResponse>* InferenceService::generate(
    grpc::CallbackServerContext& context) {
  absl::StatusOr<Admitted> admitted = admit(context, Right::use);
  if (!admitted.ok()) {
    return GenerateCall::refuse(generate_shared_, context, std::make_shared<const Caller>(),
                                admitted.status(), place_of_refused(context));
  }
  if (const absl::Status rate = service_.admit(*admitted->caller); !rate.ok()) {
    return GenerateCall::refuse(generate_shared_, context, std::move(admitted->caller), rate,
                                std::move(admitted->place));
  }
  return GenerateCall::begin(generate_shared_, limits_, context, std::move(admitted->caller),
                             std::move(admitted->place));
}

grpc::ServerBidiReactor<v1::EmbedRequest, v1::EmbedResponse>* InferenceService::embed(
    grpc::CallbackServerContext& context) {
  absl::StatusOr<Admitted> admitted = admit(context, Right::compute);
  if (!admitted.ok()) {
    add_retry(context, admitted.status());
    return new RefusedCall<v1::EmbedRequest, v1::EmbedResponse>(admitted.status(),
                                                                place_of_refused(context));
  }
  return EmbedCall::begin(embed_shared_, limits_, context, std::move(admitted->caller),
                          std::move(admitted->place));
}

}  // namespace tessera
