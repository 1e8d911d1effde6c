#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/grpc_exchange.h"
#include "tests/server/grpc_fixture.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A call's last job on the work pool may go some moments after the call.
void expect_room_given_back(const ByteBudget& budget) {
  for (int i = 0; i < 5000 && budget.used() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST_F(Grpc, TokenizesAndDetokenizes) {
  v1::TokenizeRequest request;
  request.set_text("ab");
  v1::TokenizeResponse tokens;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Tokenize(&context, request, &tokens).ok());
    EXPECT_THAT(tokens.ids(), ElementsAre(kBos, 'a', 'b'));
  }
  request.set_add_special_tokens(false);
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->Tokenize(&context, request, &tokens).ok());
  EXPECT_THAT(tokens.ids(), ElementsAre('a', 'b'));

  v1::DetokenizeRequest ids;
  *ids.mutable_ids() = tokens.ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext detokenize;
  ASSERT_TRUE(stub_->Detokenize(&detokenize, ids, &text).ok());
  EXPECT_EQ(text.text(), "ab");

  ids.add_ids(260);
  grpc::ClientContext bad;
  const grpc::Status status = stub_->Detokenize(&bad, ids, &text);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("260"));
}

TEST_F(Grpc, ComputesNoAnswerOfTokensThatFindsNoRoom) {
  const auto ask = [&] {
    v1::TokenizeRequest text;
    text.set_text("ab");
    grpc::ClientContext context;
    v1::TokenizeResponse tokens;
    const auto code = stub_->Tokenize(&context, text, &tokens).error_code();
    v1::DetokenizeRequest ids;
    ids.add_ids('a');
    grpc::ClientContext other;
    v1::DetokenizeResponse answer;
    EXPECT_EQ(stub_->Detokenize(&other, ids, &answer).error_code(), code);
    return code;
  };
  {
    const auto all = fake_->budget.take(fake_->budget.bytes());
    EXPECT_EQ(ask(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(ask(), grpc::StatusCode::OK);
  listener_->stop();
  expect_room_given_back(fake_->budget);
}

// Only the room of the message counts a field that this server does not know.
template <class Message>
Message with_unknown_field(Message message, size_t bytes) {
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(
      9999, std::string(bytes, 'x'));
  return message;
}

TEST_F(Grpc, KeepsRoomForAParsedRequestUntilItsCallIsDone) {
  constexpr size_t kBytes = 1 << 20;
  const v1::GenerateRequest request = with_unknown_field(text_request("hi"), kBytes);
  ClientStream stream(*stub_, request);
  const RequestId id = next_request();
  EXPECT_GE(fake_->budget.used(), kBytes);
  {
    const auto most = fake_->budget.take(fake_->budget.bytes() - fake_->budget.used() - kBytes / 2);
    EXPECT_EQ(ClientStream(*stub_, request).finish().error_code(), grpc::StatusCode::UNAVAILABLE);
    v1::EmbedResponse vectors;
    grpc::ClientContext embed;
    EXPECT_EQ(
        stub_->Embed(&embed, with_unknown_field(v1::EmbedRequest(), kBytes), &vectors).error_code(),
        grpc::StatusCode::UNAVAILABLE);
    v1::DetokenizeResponse text;
    grpc::ClientContext detokenize;
    EXPECT_EQ(
        stub_->Detokenize(&detokenize, with_unknown_field(v1::DetokenizeRequest(), kBytes), &text)
            .error_code(),
        grpc::StatusCode::UNAVAILABLE);
  }
  engine_->finish(id, FinishReason::length);
  EXPECT_TRUE(stream.finish().ok());
  listener_->stop();
  expect_room_given_back(fake_->budget);
}

TEST_F(Grpc, DescribesModelAndServer) {
  grpc::ClientContext model_context;
  v1::GetModelInfoResponse model;
  ASSERT_TRUE(stub_->GetModelInfo(&model_context, {}, &model).ok());
  EXPECT_EQ(model.name(), "fake");
  EXPECT_EQ(model.context(), engine_->options().context);

  grpc::ClientContext server_context;
  v1::GetServerInfoResponse server;
  ASSERT_TRUE(stub_->GetServerInfo(&server_context, {}, &server).ok());
  EXPECT_TRUE(server.ready());
  EXPECT_EQ(server.version(), TESSERA_VERSION);
  EXPECT_EQ(server.kv_cache().pages_free(), engine_->stats().pages_free);
  EXPECT_EQ(server.max_queue(), engine_->options().max_queue);
}

TEST_F(Grpc, TellsOfThePrefixCacheAndFlushesIt) {
  grpc::ClientContext context;
  v1::GetCacheInfoResponse cache;
  ASSERT_TRUE(stub_->GetCacheInfo(&context, {}, &cache).ok());
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(cache.unit_tokens(), stats.prefix_block_tokens);
  EXPECT_EQ(cache.bytes(), stats.cache.pages * stats.page_bytes);
  grpc::ClientContext flush_context;
  v1::FlushCacheResponse flushed;
  ASSERT_TRUE(stub_->FlushCache(&flush_context, {}, &flushed).ok());
  EXPECT_EQ(engine_->flushes(), 1);
}

TEST_F(Grpc, HealthTurnsWhenTheServerDrains) {
  const std::string serving = "\x08\x01";
  const std::string not_serving = "\x08\x02";
  EXPECT_EQ(health(channel_, ""), serving);
  EXPECT_EQ(health(channel_, "tessera.v1.Inference"), serving);
  EXPECT_EQ(health(channel_, "no.such.Service"), std::nullopt);
  listener_->set_not_serving();
  EXPECT_EQ(health(channel_, ""), not_serving);
  EXPECT_EQ(health(channel_, "tessera.v1.Inference"), not_serving);
}

TEST_F(Grpc, ReflectionListsTheServices) {
  const std::string list_services = {0x3a, 0x00};
  const std::optional<std::string> services = exchange(
      channel_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", list_services);
  ASSERT_TRUE(services);
  EXPECT_THAT(*services, HasSubstr("tessera.v1.Inference"));
  EXPECT_THAT(*services, HasSubstr("grpc.health.v1.Health"));
}

TEST_F(Grpc, AMessageThatIsTooLargeIsRefused) {
  start({.address = "127.0.0.1", .port = 0, .max_message_bytes = 1000});
  const grpc::Status status = ClientStream(*stub_, text_request(std::string(2000, 'x'))).finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(engine_->requests(), 0U);
}

TEST_F(Grpc, ATakenPortIsAnError) {
  const auto second = GrpcListener::start({.address = "127.0.0.1", .port = listener_->port()},
                                          *fake_->service, fake_->work);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(listener_->port())));
}

TEST_F(Grpc, AClosedPortRefusesConnectionsAndServesThoseThatAreOpen) {
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  const auto later = v1::Inference::NewStub(grpc::CreateCustomChannel(
      "127.0.0.1:" + std::to_string(listener_->port()), grpc::InsecureChannelCredentials(), own));
  EXPECT_TRUE(health(channel_, ""));
  listener_->close_port();
  EXPECT_EQ(ClientStream(*later, text_request("hi")).finish().error_code(),
            grpc::StatusCode::UNAVAILABLE);
  ClientStream stream(*stub_, text_request("hi"));
  engine_->finish(next_request(), FinishReason::length);
  EXPECT_TRUE(stream.finish().ok());
}

TEST_F(Grpc, StopAcceptingSendsClientsAwayAndFinishesTheirCalls) {
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  engine_->emit(id, "a");
  stream.read_until("a");
  listener_->stop_accepting();
  EXPECT_TRUE(channel_->WaitForStateChange(GRPC_CHANNEL_READY,
                                           std::chrono::system_clock::now() + kPatience))
      << "the client was not told";
  EXPECT_EQ(ClientStream(*stub_, text_request("later")).finish().error_code(),
            grpc::StatusCode::UNAVAILABLE);
  engine_->emit(id, "b");
  engine_->finish(id, FinishReason::length);
  EXPECT_TRUE(stream.finish().ok());
  EXPECT_EQ(stream.text(), "ab");
  EXPECT_TRUE(listener_->drain(kPatience));
  EXPECT_EQ(engine_->requests(), 1U);
}

TEST_F(Grpc, AStreamMayWaitLongerForATokenThanAClientForAMessage) {
  start({.address = "127.0.0.1", .port = 0, .write_timeout = std::chrono::milliseconds(500)});
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  engine_->emit(id, "a");
  stream.read_until("a");
  std::this_thread::sleep_for(std::chrono::seconds(1));
  engine_->emit(id, "b");
  engine_->finish(id, FinishReason::length);
  EXPECT_TRUE(stream.finish().ok()) << "a message that was read counts as unread";
  EXPECT_EQ(stream.text(), "ab");
}

TEST_F(Grpc, StopEndsWhatIsOpen) {
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  EXPECT_FALSE(listener_->drain(std::chrono::milliseconds(1)));
  const auto begin = std::chrono::steady_clock::now();
  listener_->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatience / 2) << "not by its deadline";
  EXPECT_TRUE(engine_->cancelled(id));
  EXPECT_FALSE(stream.finish().ok());
  engine_->finish(id, FinishReason::cancelled);
}

}  // namespace
}  // namespace tessera
