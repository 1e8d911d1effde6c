#pragma once

#include <set>
#include <string>
#include <utility>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/grpc/call_limits.h"
#include "server/tenants/api_keys.h"

namespace tessera {

// Describes services to clients that have no proto file, from the descriptors of the generated
// code. Thread-safe.
class ServiceDescriber {
 public:
  // `services`: full names. `keys` must outlive this.
  ServiceDescriber(std::set<std::string> services, const ApiKeys& keys, const CallLimits& limits)
      : services_(std::move(services)), keys_(keys), limits_(limits) {}

  using Request = grpc::reflection::v1::ServerReflectionRequest;
  using Response = grpc::reflection::v1::ServerReflectionResponse;

  Response answer(const Request& request) const;

  // Returns: a stream that answers each request in turn, or refuses a call without a key.
  grpc::ServerBidiReactor<Request, Response>* serve(grpc::CallbackServerContext& context) const;

 private:
  const std::set<std::string> services_;
  const ApiKeys& keys_;
  const CallLimits limits_;
};

// The service under one of its two names. `Base`: the generated callback service. The describer
// must outlive every call.
template <class Base>
class ReflectionService final : public Base {
 public:
  explicit ReflectionService(const ServiceDescriber& describer) : describer_(describer) {}

  grpc::ServerBidiReactor<ServiceDescriber::Request, ServiceDescriber::Response>*
  ServerReflectionInfo(grpc::CallbackServerContext* context) override {
    return describer_.serve(*context);
  }

 private:
  const ServiceDescriber& describer_;
};

using ReflectionV1 = ReflectionService<grpc::reflection::v1::ServerReflection::CallbackService>;
using ReflectionV1Alpha =
    ReflectionService<grpc::reflection::v1alpha::ServerReflection::CallbackService>;

}  // namespace tessera
