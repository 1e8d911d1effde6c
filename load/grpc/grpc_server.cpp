#include "load/grpc/grpc_server.h"

#include <grpcpp/create_channel.h>

#include <chrono>
#include <utility>

#include "load/request/json_text.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera::load {
namespace {

using nlohmann::json;

// Copies a member of a JSON body to the message.
// Returns: false if the message has no such field.
bool set_field(const std::string& name, const json& value, v1::GenerateRequest& out) {
  if (name == "temperature" && value.is_number()) {
    out.mutable_sampling()->set_temperature(value.get<float>());
  } else if (name == "seed" && value.is_number_unsigned()) {
    out.mutable_sampling()->set_seed(value.get<uint64_t>());
  } else if (name == "cache_salt" && value.is_string()) {
    out.mutable_cache()->set_salt(value.get<std::string>());
  } else if (name == "cache_prompt" && value.is_boolean()) {
    out.mutable_cache()->set_use(value.get<bool>());
  } else if (name == "deterministic" && value.is_boolean()) {
    out.set_deterministic(value.get<bool>());
  } else if (name == "priority" && value.is_number_integer()) {
    out.set_priority(value.get<int32_t>());
  } else if (name == "kv_cache" && value.is_string()) {
    out.mutable_kv()->set_preset(value.get<std::string>());
  } else if (name == "response_format" && value.contains("json_schema")) {
    out.mutable_grammar()->set_json_schema(print_json(value["json_schema"]["schema"]));
  } else {
    return false;
  }
  return true;
}

// Returns: the name of a field that the message does not have; empty if it has all.
std::string fill(const LoadRequest& request, v1::GenerateRequest& out) {
  if (request.messages.empty()) {
    out.set_text(request.prompt);
  }
  for (const ChatMessage& message : request.messages) {
    v1::ChatMessage* added = out.mutable_chat()->add_messages();
    added->set_role(message.role);
    added->set_content(message.content);
    if (!message.tool_calls.empty()) return "tool_calls";
  }
  if (request.max_tokens > 0) out.set_max_tokens(request.max_tokens);
  out.set_ignore_eos(request.ignore_eos);
  for (const auto& [name, value] : request.fields.items()) {
    if (!set_field(name, value, out)) return name;
  }
  return "";
}

ErrorClass class_of(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return ErrorClass::none;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return ErrorClass::rejected;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ErrorClass::timed_out;
    case grpc::StatusCode::UNAVAILABLE:
      return ErrorClass::no_connection;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::ALREADY_EXISTS:
      return ErrorClass::client_error;
    case grpc::StatusCode::CANCELLED:
      return ErrorClass::cut_short;
    default:
      return ErrorClass::server_error;
  }
}

void prepare(grpc::ClientContext& context, const ServerOptions& options) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::microseconds(static_cast<int64_t>(options.timeout * 1e6)));
  if (!options.api_key.empty()) {
    context.AddMetadata("authorization", "Bearer " + options.api_key);
  }
}

// One call of Generate. gRPC's threads pass on the messages they read; everything else happens on
// the loop's thread.
class GenerateCall final : public grpc::ClientReadReactor<v1::GenerateResponse>,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(EventLoop& loop, const Fault& fault, std::shared_ptr<GenerationEvents> events)
      : loop_(loop), running_(loop.keep_running()), fault_(fault), events_(std::move(events)) {}

  void start(v1::Inference::Stub& stub, const ServerOptions& options) {
    self_ = shared_from_this();
    prepare(context_, options);
    stub.async()->Generate(&context_, &request, this);
    StartRead(&read_);
    StartCall();
    events_->sent();
    if (fault_.kind == Fault::Kind::close && fault_.phase < Fault::Phase::first) cancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    loop_.post([self = self_, message = std::move(read_)] { self->take(message); });
    read_ = {};
    StartRead(&read_);
  }

  void OnDone(const grpc::Status& status) override {
    loop_.post([self = std::move(self_), status] { self->end(status); });
  }

  v1::GenerateRequest request;

 private:
  static constexpr int64_t kMiddle = 4;

  void cancel() {
    cancelled_ = true;
    context_.TryCancel();
  }

  void take(const v1::GenerateResponse& message) {
    answer_.counted_tokens =
        std::max<int64_t>(answer_.counted_tokens, 0) + message.token_ids_size();
    if (!message.text().empty()) {
      answer_.text += message.text();
      ++texts_;
      events_->received(message.text());
    }
    if (message.finish_reason() == v1::FINISH_REASON_STOP) answer_.finish_reason = "stop";
    if (message.finish_reason() == v1::FINISH_REASON_LENGTH) answer_.finish_reason = "length";
    if (message.has_usage()) {
      answer_.usage = ReportedUsage{.prompt_tokens = message.usage().prompt_tokens(),
                                    .completion_tokens = message.usage().completion_tokens(),
                                    .total_tokens = -1,
                                    .cached_tokens = message.usage().cached_tokens(),
                                    .kv_bytes = message.usage().kv().bytes()};
    }
    const int64_t last = fault_.phase == Fault::Phase::first ? 1 : kMiddle;
    if (fault_.kind == Fault::Kind::close && texts_ >= last) cancel();
  }

  void end(const grpc::Status& status) {
    GenerationEnd end{.error = cancelled_ ? ErrorClass::abandoned : class_of(status.error_code()),
                      .status = static_cast<int>(status.error_code()),
                      .message = status.error_message()};
    if (end.error == ErrorClass::no_connection && answer_.counted_tokens >= 0) {
      end.error = ErrorClass::cut_short;
    }
    if (status.ok() && !cancelled_ && !answer_.usage) {
      end.error = ErrorClass::cut_short;
      end.message = "the stream ended without usage";
    }
    events_->ended(end, answer_);
    running_.reset();
  }

  EventLoop& loop_;
  std::shared_ptr<void> running_;
  const Fault fault_;
  std::shared_ptr<GenerationEvents> events_;
  std::shared_ptr<GenerateCall> self_;  // until OnDone
  grpc::ClientContext context_;
  v1::GenerateResponse read_;
  Answer answer_;
  int64_t texts_ = 0;
  bool cancelled_ = false;
};

// One call with one answer. Passes both status and answer on to the loop's thread.
template <class Request, class Response>
struct UnaryCall {
  grpc::ClientContext context;
  Request request;
  Response response;
  std::shared_ptr<void> running;
};

absl::Status status_of(const grpc::Status& status, const std::string& where) {
  return status.ok() ? absl::OkStatus()
                     : absl::UnavailableError(where + ": " + status.error_message());
}

ServerReading reading_of(const v1::GetServerInfoResponse& server,
                         const v1::GetCacheInfoResponse& cache) {
  const v1::KvCacheInfo& kv = server.kv_cache();
  ServerReading reading;
  reading.running = server.running();
  reading.waiting = server.waiting();
  // Unlocked pages of the prefix cache count as free.
  const int64_t held = (kv.pages_total() - kv.pages_free()) * kv.page_bytes();
  reading.kv_bytes["all"] = static_cast<double>(held + cache.unused_bytes());
  reading.prefix_cache_bytes = static_cast<double>(cache.bytes());
  reading.locked_bytes = static_cast<double>(cache.bytes() - cache.unused_bytes());
  reading.prefix_queries = static_cast<double>(cache.query_tokens());
  reading.prefix_hits = static_cast<double>(cache.hit_tokens());
  return reading;
}

// A restarted server is found again within a second.
std::shared_ptr<grpc::Channel> open_channel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

class GrpcServer final : public Server {
 public:
  GrpcServer(EventLoop& loop, std::string target, ServerOptions options)
      : loop_(loop),
        target_(std::move(target)),
        options_(std::move(options)),
        stub_(v1::Inference::NewStub(open_channel(target_))) {}

  absl::StatusOr<Identity> identify(const std::string& model) override {
    Identity identity;
    identity.tessera = true;
    absl::Status status;
    call<v1::GetModelInfoRequest, v1::GetModelInfoResponse>(
        &Async::GetModelInfo, [&](absl::Status how, const v1::GetModelInfoResponse& info) {
          status = std::move(how);
          identity.model = info.name();
        });
    loop_.run();
    if (status.ok() && !model.empty() && model != identity.model) {
      status = absl::InvalidArgumentError("--model: " + target_ + " serves " + identity.model);
    }
    return status.ok() ? absl::StatusOr<Identity>(identity) : status;
  }

  bool plays(const Fault& fault) const override {
    return fault.kind == Fault::Kind::none ||
           (fault.kind == Fault::Kind::close && fault.phase >= Fault::Phase::sent);
  }

  void generate(const LoadRequest& request, const Fault& fault,
                std::shared_ptr<GenerationEvents> events) override {
    auto call = std::make_shared<GenerateCall>(loop_, fault, events);
    if (const std::string unknown = fill(request, call->request); !unknown.empty()) {
      loop_.post([events, unknown] {
        events->ended(
            {.error = ErrorClass::client_error, .message = "gRPC has no field '" + unknown + "'"},
            {});
      });
      return;
    }
    call->start(*stub_, options_);
  }

  void read_metrics(std::function<void(std::optional<ServerReading>)> done) override {
    call<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
        &Async::GetServerInfo,
        [this, done = std::move(done)](const absl::Status& how,
                                       const v1::GetServerInfoResponse& server) {
          if (!how.ok()) {
            done(std::nullopt);
            return;
          }
          call<v1::GetCacheInfoRequest, v1::GetCacheInfoResponse>(
              &Async::GetCacheInfo,
              [done, server](const absl::Status& status, const v1::GetCacheInfoResponse& cache) {
                done(status.ok() ? std::optional(reading_of(server, cache)) : std::nullopt);
              });
        });
  }

  void flush_cache(std::function<void(absl::Status)> done) override {
    call<v1::FlushCacheRequest, v1::FlushCacheResponse>(
        &Async::FlushCache,
        [done = std::move(done)](absl::Status how, const v1::FlushCacheResponse& /*empty*/) {
          done(std::move(how));
        });
  }

 private:
  using Async = v1::Inference::StubInterface::async_interface;

  template <class Request, class Response, class Done>
  void call(void (Async::*method)(grpc::ClientContext*, const Request*, Response*,
                                  std::function<void(grpc::Status)>),
            Done done) {
    auto call = std::make_shared<UnaryCall<Request, Response>>();
    prepare(call->context, options_);
    call->running = loop_.keep_running();
    (stub_->async()->*method)(&call->context, &call->request, &call->response,
                              [this, call, done = std::move(done)](const grpc::Status& status) {
                                loop_.post([this, call, done, status] {
                                  done(status_of(status, target_), call->response);
                                  call->running.reset();
                                });
                              });
  }

  EventLoop& loop_;
  const std::string target_;
  const ServerOptions options_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> make_grpc_server(EventLoop& loop, const std::string& target,
                                                         const ServerOptions& options) {
  return std::make_unique<GrpcServer>(loop, target, options);
}

}  // namespace tessera::load
