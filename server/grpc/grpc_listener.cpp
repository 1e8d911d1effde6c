#include "server/grpc/grpc_listener.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <future>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/base/authority.h"
#include "server/base/memory_guard.h"
#include "server/grpc/call_limits.h"
#include "server/grpc/connection_acceptor.h"
#include "server/grpc/health_service.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/reflection_service.h"
#include "server/grpc/unary_call.h"
#include "server/grpc/watched_certificate.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera {
namespace {

// Time for a client to begin HTTP/2, and TLS before it.
constexpr int kHandshakeTime = 10'000;  // milliseconds

// A connection without a call is closed after this time.
constexpr int kIdleTime = 300'000;  // milliseconds

// Most bytes of a call's metadata, its key included.
constexpr int kMaxMetadata = 16 << 10;

// Time that a stopping server waits until complete answers are sent.
constexpr std::chrono::milliseconds kFlushTime{500};

// The logs of gRPC and protobuf are global to the process. Clients cause their lines, so only
// --log-level debug shows them: protobuf has one for each message with a string that is no UTF-8.
void set_up_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function([](gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); });
    google::protobuf::SetLogHandler(
        [](google::protobuf::LogLevel, const char*, int, const std::string& message) {
          spdlog::debug("protobuf: {}", message);
        });
  });
}

int milliseconds(std::chrono::milliseconds time) {
  return static_cast<int>(time.count());
}

void apply(const GrpcOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetResourceQuota(grpc::ResourceQuota("tessera").Resize(options.memory_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadata);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTime);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleTime);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds(options.keepalive_interval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             milliseconds(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             milliseconds(options.min_ping_interval));
}

// Connections made a second or two after a change of the files have the new certificate.
std::shared_ptr<grpc::ServerCredentials> make_credentials(const WatchedCertificate* certificate) {
  if (certificate == nullptr) {
    return grpc::InsecureServerCredentials();
  }
  constexpr unsigned kLookSeconds = 1;
  using grpc::experimental::FileWatcherCertificateProvider;
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<FileWatcherCertificateProvider>(certificate->path(), certificate->path(),
                                                       kLookSeconds));
  tls.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsServerCredentials(tls);
}

std::set<std::string> service_names() {
  return {v1::Inference::service_full_name(), grpc::health::v1::Health::service_full_name(),
          grpc::reflection::v1::ServerReflection::service_full_name(),
          grpc::reflection::v1alpha::ServerReflection::service_full_name()};
}

// Refuses calls of methods that no service has. gRPC would do so too, and not count them.
class UnknownMethods final : public grpc::CallbackGenericService {
 public:
  explicit UnknownMethods(OpenCalls& open) : open_(open) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new RefusedCall<grpc::ByteBuffer, grpc::ByteBuffer>(
        absl::UnimplementedError("this server has no method of that name"),
        *open_.take(*context, /*has_caller=*/false));
  }

 private:
  OpenCalls& open_;
};

class Listener final : public GrpcListener {
 public:
  Listener(const GrpcOptions& options, Service& service, RequestWork work)
      : keys_(options.api_keys),
        open_(std::make_shared<OpenCalls>(options.call_bytes)),
        unread_(options.write_timeout),
        limits_{*open_, unread_, static_cast<std::size_t>(options.max_message_bytes)},
        inference_(service, keys_, limits_, work) {
    service.watch_memory({.name = "grpc_calls",
                          .bytes =
                              [calls = std::weak_ptr(open_)] {
                                const auto alive = calls.lock();
                                return alive == nullptr ? 0 : static_cast<int64_t>(alive->bytes());
                              },
                          .shrink = nullptr});
  }
  ~Listener() override { stop(); }

  absl::Status listen(const GrpcOptions& options) {
    set_up_process();
    if (!options.tls_certificate.empty() || !options.tls_key.empty()) {
      TESSERA_ASSIGN_OR_RETURN(certificate_,
                               WatchedCertificate::watch(options.tls_certificate, options.tls_key));
    }
    const auto credentials = make_credentials(certificate_.get());
    grpc::ServerBuilder builder;
    apply(options, builder);
    const std::string where = authority(options.address, options.port);
    auto acceptor = ConnectionAcceptor::listen(options.address, options.port);
    if (!acceptor.ok()) {
      return absl::UnavailableError(fmt::format("cannot listen on grpc://{}: {}", where,
                                                std::string(acceptor.status().message())));
    }
    auto accepted = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    for (grpc::Service* registered : std::initializer_list<grpc::Service*>{
             &inference_, &health_, &reflection_v1_, &reflection_v1alpha_}) {
      builder.RegisterService(registered);
    }
    builder.RegisterCallbackGenericService(&unknown_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(fmt::format("cannot serve grpc://{}", where));
    }
    acceptor_ = *std::move(acceptor);
    acceptor_->start(std::move(accepted), options.max_connections);
    return absl::OkStatus();
  }

  int32_t port() const override { return acceptor_->port(); }

  void set_not_serving() override { health_.set_serving(false); }

  bool drain(std::chrono::milliseconds timeout) override {
    return inference_.calls().wait_until_none_is_open(timeout);
  }

  void close_port() override { acceptor_->stop(); }

  void stop_accepting() override {
    if (shut_down_.valid()) {
      return;
    }
    close_port();
    health_.stop();
    // Shutdown() sends GOAWAY, then waits for the open calls.
    shut_down_ = std::async(std::launch::async, [this] { server_->Shutdown(); });
  }

  void stop() override {
    if (server_ == nullptr) {
      return;
    }
    stop_accepting();
    if (shut_down_.wait_for(kFlushTime) != std::future_status::ready) {
      acceptor_->close_connections();
    }
    shut_down_.wait();
    server_.reset();
  }

 private:
  const ApiKeys keys_;
  const std::shared_ptr<OpenCalls> open_;
  UnreadMessages unread_;
  const CallLimits limits_;
  InferenceService inference_;
  HealthService health_{{v1::Inference::service_full_name()}, limits_};
  UnknownMethods unknown_{*open_};
  const ServiceDescriber describer_{service_names(), keys_, limits_};
  ReflectionV1 reflection_v1_{describer_};
  ReflectionV1Alpha reflection_v1alpha_{describer_};
  std::unique_ptr<WatchedCertificate> certificate_;  // null: plain HTTP/2
  std::unique_ptr<ConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::future<void> shut_down_;  // valid: stop_accepting() was called
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::start(const GrpcOptions& options,
                                                                  Service& service,
                                                                  RequestWork work) {
  auto listener = std::make_unique<Listener>(options, service, work);
  if (absl::Status status = listener->listen(options); !status.ok()) {
    return status;
  }
  return listener;
}

}  // namespace tessera
