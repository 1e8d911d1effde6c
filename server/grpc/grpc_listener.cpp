#include "server/grpc/grpc_listener.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/authority.h"
#include "server/grpc/inference_service.h"

namespace tessera {
namespace {

// Reflection is served by threads of its own, unlike all else; so many at most.
constexpr int kMaxSynchronousThreads = 16;

// What a stopping server waits for: bytes of answers that are complete.
constexpr std::chrono::milliseconds kFlushTime{500};

// gRPC's health service, reflection and log are the process's.
void set_up_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    gpr_set_log_function([](gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); });
  });
}

int milliseconds(std::chrono::milliseconds time) {
  return static_cast<int>(time.count());
}

void apply(const GrpcOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetResourceQuota(grpc::ResourceQuota("tessera").SetMaxThreads(kMaxSynchronousThreads));
  // Else a second server would share the port, and get half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds(options.keepalive_interval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             milliseconds(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             milliseconds(options.least_ping_interval));
}

class Listener final : public GrpcListener {
 public:
  Listener(const GrpcOptions& options, Service& service)
      : inference_(service, options.max_pending_tokens) {}
  ~Listener() override { stop(); }

  absl::Status listen(const GrpcOptions& options) {
    set_up_process();
    grpc::ServerBuilder builder;
    apply(options, builder);
    builder.AddListeningPort(authority(options.address, options.port),
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&inference_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on grpc://",
                                                 authority(options.address, options.port),
                                                 ": is the port taken?"));
    }
    server_->GetHealthCheckService()->SetServingStatus(v1::Inference::service_full_name(), true);
    return absl::OkStatus();
  }

  int32_t port() const override { return port_; }

  void set_not_serving() override { server_->GetHealthCheckService()->SetServingStatus(false); }

  bool drain(std::chrono::milliseconds timeout) override {
    return inference_.calls().wait_until_none_is_open(timeout);
  }

  void stop() override {
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now() + kFlushTime);
      server_.reset();
    }
  }

 private:
  InferenceService inference_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::start(const GrpcOptions& options,
                                                                  Service& service) {
  auto listener = std::make_unique<Listener>(options, service);
  if (absl::Status status = listener->listen(options); !status.ok()) {
    return status;
  }
  return listener;
}

}  // namespace tessera
