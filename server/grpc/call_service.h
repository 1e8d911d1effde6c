#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/server_callback.h>

namespace tessera {

// A service whose calls have their reactor as soon as their headers have come. Those of gRPC's
// generated services wait for the first message before, so that a client without a key could hold
// any number of calls without being counted. On the wire there is no difference: a call with one
// message is a stream of one.
class CallService : public grpc::Service {
 protected:
  // `path`: of the method, such as "/package.Service/Method"; must outlive the service.
  // `make`: called as make(grpc::CallbackServerContext&), on gRPC's thread.
  // Returns: a grpc::ServerBidiReactor<Request, Response>*, which deletes itself.
  template <class Request, class Response, class Make>
  void add_method(const char* path, Make make) {
    AddMethod(new grpc::internal::RpcServiceMethod(path, grpc::internal::RpcMethod::BIDI_STREAMING,
                                                   nullptr));
    MarkMethodCallback(
        methods_++, new grpc::internal::CallbackBidiHandler<Request, Response>(
                        [make](grpc::CallbackServerContext* context) { return make(*context); }));
  }

 private:
  int methods_ = 0;
};

}  // namespace tessera
