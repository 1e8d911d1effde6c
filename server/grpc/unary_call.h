#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "server/base/byte_budget.h"
#include "server/grpc/call_limits.h"
#include "server/grpc/wire.h"

namespace tessera {

// A call of one message each way. gRPC owns it from its creation to OnDone. Until then it holds its
// place, and the room of both messages.
template <class Request, class Response>
class UnaryCall final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  // Called when the request has come. Leads to one reply(), on any thread.
  using Answer = std::function<void(UnaryCall&)>;

  UnaryCall(const CallLimits& limits, grpc::CallbackServerContext& context, OpenCalls::Place place,
            Answer answer)
      : unread_(limits.unread),
        context_(context),
        place_(std::move(place)),
        answer_(std::move(answer)) {
    unread_.begin(context_, limits.request_bytes);
    this->StartRead(&request_);
  }

  const Request& request() const { return request_; }
  Response& response() { return response_; }
  ByteBudget::Share& request_room() { return request_room_; }
  ByteBudget::Share& response_room() { return response_room_; }

  // Ends the call, with the response if the status is OK.
  void reply(const absl::Status& status) {
    if (!status.ok()) {
      return this->Finish(to_grpc(status));
    }
    unread_.begin(context_, response_.ByteSizeLong());
    this->StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }

 private:
  void OnReadDone(bool ok) override {
    unread_.end(context_);
    if (!ok) {
      return this->Finish(to_grpc(no_message()));
    }
    place_.keep();
    answer_(*this);
  }

  void OnDone() override {
    unread_.end(context_);
    place_.release();
    delete this;
  }

  UnreadMessages& unread_;
  grpc::CallbackServerContext& context_;
  OpenCalls::Place place_;
  const Answer answer_;
  Request request_;
  Response response_;
  ByteBudget::Share request_room_;
  ByteBudget::Share response_room_;
};

// A call that ends at once.
template <class Request, class Response>
class RefusedCall final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  RefusedCall(const absl::Status& status, OpenCalls::Place place) : place_(std::move(place)) {
    this->Finish(to_grpc(status));
  }

 private:
  void OnDone() override {
    place_.release();
    delete this;
  }

  OpenCalls::Place place_;
};

}  // namespace tessera
