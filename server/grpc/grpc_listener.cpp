#include "server/grpc/grpc_listener.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <spdlog/spdlog.h>

#include <fstream>
#include <future>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/status_macros.h"
#include "server/authority.h"
#include "server/grpc/connection_acceptor.h"
#include "server/grpc/health_service.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/reflection_service.h"

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

absl::Status check_readable(const char* what, const std::string& path) {
  if (!std::ifstream(path, std::ios::binary).good()) {
    return absl::NotFoundError(absl::StrCat(what, " '", path, "' cannot be read"));
  }
  return absl::OkStatus();
}

// gRPC finds out when the first client connects.
bool fit_together(const GrpcOptions& options) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_server_method()),
                                                                  SSL_CTX_free);
  const bool fit =
      SSL_CTX_use_certificate_chain_file(context.get(), options.tls_certificate.c_str()) == 1 &&
      SSL_CTX_use_PrivateKey_file(context.get(), options.tls_key.c_str(), SSL_FILETYPE_PEM) == 1 &&
      SSL_CTX_check_private_key(context.get()) == 1;
  ERR_clear_error();
  return fit;
}

// gRPC looks at the files itself: connections made a second after a change have the new
// certificate.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> make_credentials(
    const GrpcOptions& options) {
  if (options.tls_certificate.empty() && options.tls_key.empty()) {
    return grpc::InsecureServerCredentials();
  }
  TESSERA_RETURN_IF_ERROR(check_readable("TLS certificate", options.tls_certificate));
  TESSERA_RETURN_IF_ERROR(check_readable("TLS key", options.tls_key));
  if (!fit_together(options)) {
    return absl::UnavailableError(absl::StrCat("TLS certificate '", options.tls_certificate,
                                               "' and key '", options.tls_key,
                                               "' do not fit together"));
  }
  constexpr unsigned kLookSeconds = 1;
  using grpc::experimental::FileWatcherCertificateProvider;
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<FileWatcherCertificateProvider>(options.tls_key, options.tls_certificate,
                                                       kLookSeconds));
  tls.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsServerCredentials(tls);
}

std::set<std::string> service_names() {
  return {v1::Inference::service_full_name(), grpc::health::v1::Health::service_full_name(),
          grpc::reflection::v1::ServerReflection::service_full_name(),
          grpc::reflection::v1alpha::ServerReflection::service_full_name()};
}

class Listener final : public GrpcListener {
 public:
  Listener(const GrpcOptions& options, Service& service, RequestWork work)
      : keys_(options.api_keys),
        inference_(service, keys_, options.max_pending_tokens, options.write_timeout, work) {}
  ~Listener() override { stop(); }

  absl::Status listen(const GrpcOptions& options) {
    set_up_process();
    TESSERA_ASSIGN_OR_RETURN(const auto credentials, make_credentials(options));
    grpc::ServerBuilder builder;
    apply(options, builder);
    const std::string where = authority(options.address, options.port);
    auto acceptor = ConnectionAcceptor::listen(options.address, options.port);
    if (!acceptor.ok()) {
      return absl::UnavailableError(absl::StrCat("cannot listen on grpc://", where, ": ",
                                                 std::string(acceptor.status().message())));
    }
    auto accepted = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    for (grpc::Service* registered : std::initializer_list<grpc::Service*>{
             &inference_, &health_, &reflection_v1_, &reflection_v1alpha_}) {
      builder.RegisterService(registered);
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot serve grpc://", where));
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
  InferenceService inference_;
  HealthService health_{{v1::Inference::service_full_name()}};
  const ServiceDescriber describer_{service_names(), keys_};
  ReflectionV1 reflection_v1_{describer_};
  ReflectionV1Alpha reflection_v1alpha_{describer_};
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
