// Adapters (LoRA) over gRPC.

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "server/adapters/adapter_store.h"
#include "tests/server/adapter_files.h"
#include "tests/server/grpc_fixture.h"

namespace tessera {
namespace {

class GrpcAdapters : public Grpc {
 protected:
  GrpcAdapters() {
    listener_.reset();
    FakeEngine measuring;
    measuring.adapt(AdapterFiles::config());
    each_ = measuring.measure_adapter(files_.write("a", 1)).value();
    fake_ =
        std::make_unique<FakeService>(true, std::vector<std::string>{"alias"},
                                      std::make_unique<FakeTokenizer>(), SamplingParams(), each_);
    engine_ = fake_->engine;
    engine_->adapt(AdapterFiles::config());
    auto listener =
        GrpcListener::start({.address = "127.0.0.1", .port = 0}, *fake_->service, fake_->work);
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(listener_->port()),
                                   grpc::InsecureChannelCredentials());
    stub_ = v1::Inference::NewStub(channel_);
  }

  void add(const std::string& name) {
    std::atomic<bool> added = false;
    fake_->service->adapters()->add(name, files_.write(name, 1), [&](const auto& result) {
      EXPECT_TRUE(result.ok()) << result.status();
      added = true;
    });
    while (!added) std::this_thread::yield();
  }

  // Asks the model `name`. Returns: the fingerprint of the adapter that the engine got.
  std::string adapter_of(const std::string& name) {
    v1::GenerateRequest request;
    request.set_text("a");
    request.set_model(name);
    request.set_max_tokens(1);
    ClientStream stream(*stub_, request);
    const RequestId id = next_request();
    engine_->finish(id, FinishReason::stop);
    EXPECT_TRUE(stream.finish().ok());
    return engine_->fingerprint(id);
  }

  AdapterFiles files_;
  int64_t each_ = 0;  // bytes of one, of which one fits
};

TEST_F(GrpcAdapters, AreChosenByTheModelsName) {
  add("a");
  EXPECT_NE(adapter_of("a"), "");
  EXPECT_EQ(adapter_of("alias"), "");
  EXPECT_EQ(adapter_of(""), "");
  v1::GetModelInfoResponse info;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->GetModelInfo(&context, {}, &info).ok());
  ASSERT_EQ(info.adapters_size(), 1);
  EXPECT_EQ(info.adapters(0), "a");
  v1::GenerateRequest request;
  request.set_text("a");
  request.set_model("b");
  EXPECT_EQ(ClientStream(*stub_, request).finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GrpcAdapters, ACallWaitsForAnAdapterThatHasLeftMemory) {
  add("a");
  add("b");
  for (const char* name : {"a", "b", "a"}) {
    EXPECT_NE(adapter_of(name), "") << name;
  }
}

TEST_F(GrpcAdapters, AnEmbeddingIsRefusedUntilItsAdapterIsRead) {
  add("a");
  add("b");
  engine_->answer_with([](const EngineRequest&) { return ""; });
  grpc::Status status;
  for (int i = 0; i < 500; ++i) {
    v1::EmbedRequest request;
    request.add_inputs()->set_text("x");
    request.set_model("a");
    v1::EmbedResponse response;
    grpc::ClientContext context;
    status = stub_->Embed(&context, request, &response);
    EXPECT_TRUE(i > 0 || status.error_code() == grpc::StatusCode::UNAVAILABLE);
    if (status.ok()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace tessera
