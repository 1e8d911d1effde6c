// Calls that are open: their number, and those that send no message.
#include <gmock/gmock.h>
#include <grpcpp/impl/codegen/client_callback.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/server/grpc_fixture.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
namespace health_v1 = grpc::health::v1;

constexpr std::size_t kAnonymous = 8;  // of the 32 calls that there are at least
constexpr std::size_t kCalled = 24;

// A call whose client has sent its headers and no message. On the wire it is as those of the
// generated stubs, which send a message at once.
template <class Request, class Response>
class HeadersOnly {
 public:
  HeadersOnly(const std::shared_ptr<grpc::Channel>& channel, const char* path,
              const std::string& key = "")
      : method_(path, grpc::internal::RpcMethod::BIDI_STREAMING, channel) {
    context_.set_deadline(std::chrono::system_clock::now() + kPatience);
    if (!key.empty()) {
      context_.AddMetadata("authorization", "Bearer " + key);
    }
    stream_.reset(grpc::internal::ClientReaderWriterFactory<Request, Response>::Create(
        channel.get(), method_, &context_));
  }

  grpc::ClientReaderWriter<Request, Response>& stream() { return *stream_; }

 private:
  grpc::ClientContext context_;
  const grpc::internal::RpcMethod method_;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream_;
};

using Generating = HeadersOnly<v1::GenerateRequest, v1::GenerateResponse>;
using Watching = HeadersOnly<health_v1::HealthCheckRequest, health_v1::HealthCheckResponse>;

constexpr char kGenerate[] = "/tessera.v1.Inference/Generate";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";

class GrpcCalls : public Grpc {
 protected:
  // Few calls may be open.
  void start_small(ApiKeys keys = {}, std::chrono::milliseconds patience = kPatience) {
    start({.address = "127.0.0.1",
           .port = 0,
           .max_message_bytes = 64 << 10,
           .call_bytes = 0,
           .write_timeout = patience,
           .api_keys = std::move(keys)});
  }

  bool serves() {
    grpc::ClientContext context;
    health_v1::HealthCheckResponse response;
    return health_v1::Health::NewStub(channel_)->Check(&context, {}, &response).ok();
  }

  grpc::Status ask() {
    grpc::ClientContext context;
    v1::GetModelInfoResponse response;
    return stub_->GetModelInfo(&context, {}, &response);
  }
};

TEST_F(GrpcCalls, AreRefusedWithoutAKeyBeforeTheirMessage) {
  start_small(ApiKeys({"one"}));
  Generating generating(channel_, kGenerate, "two");
  EXPECT_EQ(generating.stream().Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  HeadersOnly<v1::TokenizeRequest, v1::TokenizeResponse> tokenizing(
      channel_, "/tessera.v1.Inference/Tokenize");
  EXPECT_EQ(tokenizing.stream().Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  HeadersOnly<v1::EmbedRequest, v1::EmbedResponse> embedding(channel_,
                                                             "/tessera.v1.Inference/Embed");
  EXPECT_EQ(embedding.stream().Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  Watching unknown(channel_, "/no.such/Method");
  EXPECT_EQ(unknown.stream().Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(GrpcCalls, MakeWayForOneMoreIfTheyAreOfTheHealthService) {
  start_small();
  std::deque<Watching> watching;
  health_v1::HealthCheckResponse response;
  for (std::size_t i = 0; i < kAnonymous; ++i) {
    Watching& one = watching.emplace_back(channel_, kWatch);
    ASSERT_TRUE(one.stream().Write({}));
    ASSERT_TRUE(one.stream().Read(&response));
  }
  EXPECT_TRUE(serves());
  EXPECT_FALSE(watching[0].stream().Read(&response)) << "the oldest has made way";
  EXPECT_EQ(watching[0].stream().Finish().error_code(), grpc::StatusCode::CANCELLED);
  listener_->set_not_serving();
  EXPECT_TRUE(watching[1].stream().Read(&response)) << "one was enough";
  for (std::size_t i = 0; i < 10 * kAnonymous; ++i) {
    watching.emplace_back(channel_, kWatch);
    EXPECT_TRUE(serves());
  }
}

TEST_F(GrpcCalls, MakeWayIfTheySendNoRequest) {
  start_small();
  std::deque<Generating> generating;
  for (std::size_t i = 0; i < 2 * kCalled; ++i) {
    generating.emplace_back(channel_, kGenerate);
    EXPECT_TRUE(ask().ok());
  }
  EXPECT_EQ(generating[0].stream().Finish().error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(generating.back().stream().Write(text_request("hi")));
  engine_->emit(next_request(), "a");
  v1::GenerateResponse message;
  EXPECT_TRUE(generating.back().stream().Read(&message)) << "a late message is served";
  listener_->stop();
}

TEST_F(GrpcCalls, MakeWayForNoneWhileTheyRun) {
  start_small();
  std::deque<ClientStream> running;
  for (std::size_t i = 0; i < kCalled; ++i) {
    running.emplace_back(*stub_, text_request("hi"));
    engine_->emit(next_request(), "a");
    running.back().read_until("a");
  }
  EXPECT_THAT(fake_->service->expose_metrics(),
              HasSubstr(absl::StrCat("part=\"grpc_calls\"} ", kCalled * (20U << 10U))));
  const grpc::Status refused = ask();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("32 open calls"));
  EXPECT_TRUE(serves()) << "calls without a caller have places of their own";
  engine_->finish(0, FinishReason::stop);
  EXPECT_TRUE(running[0].finish().ok());
  grpc::Status free = ask();
  for (int i = 0; i < 1000 && !free.ok(); ++i) {  // gRPC forgets a call a moment after its end
    free = ask();
  }
  EXPECT_TRUE(free.ok()) << free.error_message();
  listener_->stop();
}

TEST_F(GrpcCalls, EndWhereTheirRequestDoesNotComeInTime) {
  start_small({}, std::chrono::milliseconds(50));
  Generating generating(channel_, kGenerate);
  Watching watching(channel_, kWatch);
  HeadersOnly<v1::TokenizeRequest, v1::TokenizeResponse> tokenizing(
      channel_, "/tessera.v1.Inference/Tokenize");
  EXPECT_EQ(generating.stream().Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(watching.stream().Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(tokenizing.stream().Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcCalls, EndAtOnceWithoutAMessage) {
  Generating generating(channel_, kGenerate);
  generating.stream().WritesDone();
  EXPECT_EQ(generating.stream().Finish().error_code(), grpc::StatusCode::INTERNAL);
  Watching watching(channel_, kWatch);
  watching.stream().WritesDone();
  EXPECT_EQ(watching.stream().Finish().error_code(), grpc::StatusCode::INTERNAL);
  HeadersOnly<v1::EmbedRequest, v1::EmbedResponse> embedding(channel_,
                                                             "/tessera.v1.Inference/Embed");
  embedding.stream().WritesDone();
  EXPECT_EQ(embedding.stream().Finish().error_code(), grpc::StatusCode::INTERNAL);
}

}  // namespace
}  // namespace tessera
