#pragma once

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/grpc/grpc_listener.h"
#include "tessera/v1/inference.grpc.pb.h"
#include "tests/server/fake_engine.h"

namespace tessera {

constexpr std::chrono::seconds kPatience{20};
constexpr int32_t kBos = 256;  // the fake tokenizer's BOS

// A listener on a free port of the loopback, over a fake engine that the test drives.
class Grpc : public ::testing::Test {
 protected:
  Grpc() { start({.address = "127.0.0.1", .port = 0}); }

  void start(const GrpcOptions& options) {
    listener_.reset();
    fake_ = std::make_unique<FakeService>();
    engine_ = fake_->engine;
    auto listener = GrpcListener::start(options, *fake_->service, fake_->work);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(listener_->port()),
                                   grpc::InsecureChannelCredentials());
    stub_ = v1::Inference::NewStub(channel_);
  }

  // Waits for the next request.
  // Returns: its id.
  RequestId next_request() {
    EXPECT_TRUE(engine_->wait_for_requests(seen_ + 1));
    return seen_++;
  }

  std::unique_ptr<FakeService> fake_;
  FakeEngine* engine_ = nullptr;
  std::unique_ptr<GrpcListener> listener_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  RequestId seen_ = 0;
};

// A Generate stream as its client sees it.
class ClientStream {
 public:
  ClientStream(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
               std::chrono::milliseconds deadline = kPatience) {
    context_.set_deadline(std::chrono::system_clock::now() + deadline);
    reader_ = stub.Generate(&context_, request);
  }

  // Reads until `text` has been received or the stream ends.
  void read_until(const std::string& text) {
    while (text_ != text && read()) {
    }
  }

  grpc::Status finish() {
    while (read()) {
    }
    return reader_->Finish();
  }

  void cancel() { context_.TryCancel(); }

  const std::string& text() const { return text_; }
  const std::vector<int32_t>& ids() const { return ids_; }
  const v1::GenerateResponse& last() const { return last_; }
  int messages() const { return messages_; }

 private:
  bool read() {
    v1::GenerateResponse message;
    if (!reader_->Read(&message)) {
      return false;
    }
    EXPECT_EQ(last_.finish_reason(), v1::FINISH_REASON_UNSPECIFIED) << "a message after the last";
    text_ += message.text();
    ids_.insert(ids_.end(), message.token_ids().begin(), message.token_ids().end());
    ++messages_;
    last_ = message;
    return true;
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  std::string text_;
  std::vector<int32_t> ids_;
  v1::GenerateResponse last_;
  int messages_ = 0;
};

inline v1::GenerateRequest text_request(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

}  // namespace tessera
