#include "load/grpc/grpc_generator.h"

#include <grpcpp/create_channel.h>

#include <chrono>
#include <utility>

#include "tessera/v1/inference.grpc.pb.h"

namespace tessera::load {
namespace {

using nlohmann::json;

// Copies a member of a JSON body to the message.
// Returns: false if the message has no such field.
bool set_field(const std::string& name, const json& value, v1::GenerateRequest& out) {
  if (name == "temperature" && value.is_number()) {
    out.mutable_sampling()->set_temperature(value.get<float>());
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

// One call. gRPC's threads pass on what they read; everything else happens on the loop's thread.
class Call final : public grpc::ClientReadReactor<v1::GenerateResponse>,
                   public std::enable_shared_from_this<Call> {
 public:
  Call(EventLoop& loop, const Fault& fault, std::shared_ptr<GenerationEvents> events)
      : loop_(loop), running_(loop.keep_running()), fault_(fault), events_(std::move(events)) {}

  void start(v1::Inference::Stub& stub, const GrpcOptions& options) {
    self_ = shared_from_this();
    context_.set_deadline(std::chrono::system_clock::now() +
                          std::chrono::microseconds(static_cast<int64_t>(options.timeout * 1e6)));
    if (!options.api_key.empty()) {
      context_.AddMetadata("authorization", "Bearer " + options.api_key);
    }
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
  std::shared_ptr<Call> self_;  // until OnDone
  grpc::ClientContext context_;
  v1::GenerateResponse read_;
  Answer answer_;
  int64_t texts_ = 0;
  bool cancelled_ = false;
};

class GrpcGenerator final : public Generator {
 public:
  GrpcGenerator(EventLoop& loop, GrpcOptions options)
      : loop_(loop),
        options_(std::move(options)),
        stub_(v1::Inference::NewStub(
            grpc::CreateChannel(options_.target, grpc::InsecureChannelCredentials()))) {}

  void generate(const LoadRequest& request, const Fault& fault,
                std::shared_ptr<GenerationEvents> events) override {
    auto call = std::make_shared<Call>(loop_, fault, events);
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

 private:
  EventLoop& loop_;
  const GrpcOptions options_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Generator>> make_grpc_generator(EventLoop& loop,
                                                               const GrpcOptions& options) {
  return std::make_unique<GrpcGenerator>(loop, options);
}

}  // namespace tessera::load
