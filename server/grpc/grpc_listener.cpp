#include "server/grpc/grpc_listener.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/server_interceptor.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <spdlog/spdlog.h>

#include <fstream>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/status_macros.h"
#include "server/authority.h"
#include "server/grpc/authorization.h"
#include "server/grpc/inference_service.h"

namespace tessera {
namespace {

// Maximum number of synchronous threads. Only reflection uses them.
constexpr int kMaxSynchronousThreads = 16;

// Time that a stopping server waits until complete answers are sent.
constexpr std::chrono::milliseconds kFlushTime{500};

// gRPC's health service, reflection and log are global to the process.
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
  // Otherwise a second server would share the port and get half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
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

// Returns: true if the files are a certificate chain and its private key.
bool fit_together(const std::string& certificate, const std::string& key) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_server_method()),
                                                                  SSL_CTX_free);
  const bool fit = context != nullptr &&
                   SSL_CTX_use_certificate_chain_file(context.get(), certificate.c_str()) == 1 &&
                   SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) == 1;
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
  if (!fit_together(options.tls_certificate, options.tls_key)) {
    return absl::UnavailableError(absl::StrCat("grpc: do certificate '", options.tls_certificate,
                                               "' and key '", options.tls_key, "' fit together?"));
  }
  constexpr unsigned kLookSeconds = 1;
  using grpc::experimental::FileWatcherCertificateProvider;
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<FileWatcherCertificateProvider>(options.tls_key, options.tls_certificate,
                                                       kLookSeconds));
  tls.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsServerCredentials(tls);
}

class Listener final : public GrpcListener {
 public:
  Listener(const GrpcOptions& options, Service& service)
      : keys_(options.api_keys), inference_(service, keys_, options.max_pending_tokens) {}
  ~Listener() override { stop(); }

  absl::Status listen(const GrpcOptions& options) {
    set_up_process();
    TESSERA_ASSIGN_OR_RETURN(const auto credentials, make_credentials(options));
    grpc::ServerBuilder builder;
    apply(options, builder);
    builder.AddListeningPort(authority(options.address, options.port), credentials, &port_);
    builder.RegisterService(&inference_);
    if (keys_.locked()) {
      std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> guards;
      guards.push_back(guard_reflection(keys_));
      builder.experimental().SetInterceptorCreators(std::move(guards));
    }
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
  const ApiKeys keys_;
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
