#include "server/grpc/authorization.h"

#include <optional>
#include <string_view>

namespace tessera {
namespace {

constexpr std::string_view kReflection = "/grpc.reflection.";

class ReflectionGuard final : public grpc::experimental::Interceptor {
 public:
  ReflectionGuard(const ApiKeys& keys, grpc::experimental::ServerRpcInfo& info)
      : keys_(keys), info_(info) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA) &&
        std::string_view(info_.method()).starts_with(kReflection) &&
        !authorize(keys_, *info_.server_context()).ok()) {
      info_.server_context()->TryCancel();
    }
    methods->Proceed();
  }

 private:
  const ApiKeys& keys_;
  grpc::experimental::ServerRpcInfo& info_;
};

class ReflectionGuards final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ReflectionGuards(const ApiKeys& keys) : keys_(keys) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new ReflectionGuard(keys_, *info);  // owned by gRPC
  }

 private:
  const ApiKeys& keys_;
};

}  // namespace

std::string_view metadata_of(const grpc::ServerContextBase& context, const char* name) {
  const auto& metadata = context.client_metadata();
  const auto shown = metadata.find(name);
  return shown == metadata.end() ? std::string_view()
                                 : std::string_view(shown->second.data(), shown->second.size());
}

absl::StatusOr<std::shared_ptr<const Caller>> authorize(const ApiKeys& keys,
                                                        const grpc::ServerContextBase& context,
                                                        bool admin) {
  std::shared_ptr<const Caller> caller = keys.find(metadata_of(context, "authorization"));
  if (caller == nullptr) {
    return absl::UnauthenticatedError(
        "no valid API key: send it as metadata 'authorization: Bearer KEY'");
  }
  if (admin && !caller->admin) {
    return absl::PermissionDeniedError("this call is for keys with the right 'admin'");
  }
  return caller;
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> guard_reflection(
    const ApiKeys& keys) {
  return std::make_unique<ReflectionGuards>(keys);
}

}  // namespace tessera
