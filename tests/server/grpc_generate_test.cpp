#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/grpc_fixture.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::AbortResponse abort(v1::Inference::Stub& stub, const std::string& name) {
  v1::AbortRequest request;
  request.set_request_id(name);
  grpc::ClientContext context;
  v1::AbortResponse response;
  EXPECT_TRUE(stub.Abort(&context, request, &response).ok());
  return response;
}

TEST_F(Grpc, StreamsTextAndTokensAsTheyCome) {
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  engine_->emit(id, "a");
  stream.read_until("a");
  engine_->emit(id, "b");
  stream.read_until("ab");
  engine_->finish(id, FinishReason::length);
  EXPECT_TRUE(stream.finish().ok());
  EXPECT_EQ(stream.text(), "ab");
  EXPECT_THAT(stream.ids(), ElementsAre('a', 'b'));
  EXPECT_EQ(stream.last().finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(stream.last().usage().prompt_tokens(), 3);
  EXPECT_EQ(stream.last().usage().completion_tokens(), 2);
  EXPECT_FALSE(stream.last().request_id().empty());
}

TEST_F(Grpc, PassesEveryFieldOn) {
  v1::GenerateRequest request = text_request("hi");
  request.mutable_sampling()->set_temperature(0.5f);
  request.mutable_sampling()->set_top_p(0.25f);
  request.mutable_sampling()->set_top_k(40);
  request.mutable_sampling()->set_seed(11);
  request.mutable_sampling()->set_min_p(0.125f);
  request.mutable_sampling()->set_repetition_penalty(1.5f);
  request.mutable_sampling()->set_presence_penalty(-1);
  request.mutable_sampling()->set_frequency_penalty(2);
  request.mutable_sampling()->set_min_tokens(3);
  (*request.mutable_sampling()->mutable_logit_bias())[7] = -5;
  request.set_max_tokens(5);
  request.add_stop_token_ids(9);
  request.set_ignore_eos(true);
  request.set_priority(-2);
  ClientStream stream(*stub_, request);
  const RequestId id = next_request();
  const EngineRequest submitted = engine_->request(id);
  EXPECT_THAT(submitted.prompt, ElementsAre(kBos, 'h', 'i'));
  EXPECT_EQ(submitted.sampling.temperature, 0.5f);
  EXPECT_EQ(submitted.sampling.top_p, 0.25f);
  EXPECT_EQ(submitted.sampling.top_k, 40);
  EXPECT_EQ(submitted.sampling.seed, 11);
  EXPECT_EQ(submitted.sampling.min_p, 0.125f);
  EXPECT_EQ(submitted.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(submitted.sampling.presence_penalty, -1);
  EXPECT_EQ(submitted.sampling.frequency_penalty, 2);
  EXPECT_EQ(submitted.sampling.min_tokens, 3);
  ASSERT_EQ(submitted.sampling.logit_bias.size(), 1U);
  EXPECT_EQ(submitted.sampling.logit_bias[0].token, 7);
  EXPECT_EQ(submitted.sampling.logit_bias[0].value, -5);
  EXPECT_EQ(submitted.max_tokens, 5);
  EXPECT_THAT(submitted.stop_ids, ElementsAre(9));
  EXPECT_TRUE(submitted.ignore_eos);
  EXPECT_EQ(submitted.priority, -2);
  engine_->finish(id, FinishReason::stop);
  EXPECT_TRUE(stream.finish().ok());
}

TEST_F(Grpc, WhatIsAbsentTakesTheDefaults) {
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  const EngineRequest submitted = engine_->request(id);
  EXPECT_EQ(submitted.sampling.temperature, SamplingParams().temperature);
  EXPECT_EQ(submitted.sampling.top_p, SamplingParams().top_p);
  EXPECT_EQ(submitted.sampling.top_k, SamplingParams().top_k);
  EXPECT_EQ(submitted.max_tokens, engine_->options().context - 3) << "the context's room";
  engine_->finish(id, FinishReason::stop);
  EXPECT_TRUE(stream.finish().ok());
}

TEST_F(Grpc, TakesTokensAndChats) {
  v1::GenerateRequest tokens;
  tokens.mutable_tokens()->add_ids(5);
  tokens.mutable_tokens()->add_ids(6);
  ClientStream first(*stub_, tokens);
  EXPECT_THAT(engine_->request(next_request()).prompt, ElementsAre(5, 6));

  v1::GenerateRequest chat;
  v1::ChatMessage& message = *chat.mutable_chat()->add_messages();
  message.set_role("me");
  message.set_content("x");
  ClientStream second(*stub_, chat);
  EXPECT_THAT(engine_->request(next_request()).prompt,
              ElementsAre(kBos, '[', 'm', 'e', ']', 'x', '[', 'a', 's', 's', 'i', 's', 't', 'a',
                          'n', 't', ']'));
  engine_->finish(0, FinishReason::stop);
  engine_->finish(1, FinishReason::stop);
  EXPECT_TRUE(first.finish().ok());
  EXPECT_TRUE(second.finish().ok());
}

TEST_F(Grpc, NeverSendsHalfACharacter) {
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  engine_->emit(id, "\xc3\xa4\xe2\x82");  // "ä", and two of the three bytes of "€"
  stream.read_until("\xc3\xa4");
  engine_->emit(id, "\xac");
  stream.read_until("\xc3\xa4\xe2\x82\xac");
  EXPECT_EQ(stream.text(), "\xc3\xa4\xe2\x82\xac");
  engine_->finish(id, FinishReason::stop);
  EXPECT_TRUE(stream.finish().ok());
}

TEST_F(Grpc, AStopTextEndsTheGenerationAndIsNotSent) {
  v1::GenerateRequest request = text_request("hi");
  request.add_stop("END");
  ClientStream stream(*stub_, request);
  const RequestId id = next_request();
  engine_->emit(id, "abENDcd");
  ASSERT_TRUE(engine_->wait_for_cancel(id));
  engine_->finish(id, FinishReason::cancelled);
  EXPECT_TRUE(stream.finish().ok());
  EXPECT_EQ(stream.text(), "ab");
  EXPECT_EQ(stream.last().finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(stream.last().usage().completion_tokens(), 5);
}

TEST_F(Grpc, AClientThatCancelsCancelsTheRequest) {
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  engine_->emit(id, "a");
  stream.read_until("a");
  EXPECT_FALSE(engine_->cancelled(id));
  stream.cancel();
  EXPECT_TRUE(engine_->wait_for_cancel(id));
  EXPECT_EQ(stream.finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(listener_->drain(kPatience)) << "the call ends without the engine";
  engine_->emit(id, "b");  // the engine may be in the middle of a step
  engine_->finish(id, FinishReason::cancelled);
}

TEST_F(Grpc, ADeadlineCancelsTheRequest) {
  ClientStream stream(*stub_, text_request("hi"), std::chrono::milliseconds(200));
  const RequestId id = next_request();
  EXPECT_EQ(stream.finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(engine_->wait_for_cancel(id));
  engine_->finish(id, FinishReason::cancelled);
}

TEST_F(Grpc, AClientWhoseConnectionBreaksCancelsTheRequest) {
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(listener_->port()),
                                           grpc::InsecureChannelCredentials(), own);
  auto stub = v1::Inference::NewStub(channel);
  auto stream = std::make_unique<ClientStream>(*stub, text_request("hi"));
  const RequestId id = next_request();
  stream.reset();
  stub.reset();
  channel.reset();
  EXPECT_TRUE(engine_->wait_for_cancel(id));
  EXPECT_TRUE(listener_->drain(kPatience));
  engine_->finish(id, FinishReason::cancelled);
}

TEST_F(Grpc, AbortEndsAGenerationByName) {
  v1::GenerateRequest request = text_request("hi");
  request.set_request_id("mine");
  ClientStream stream(*stub_, request);
  const RequestId id = next_request();
  engine_->emit(id, "a");
  stream.read_until("a");
  EXPECT_EQ(stream.last().request_id(), "mine");
  EXPECT_TRUE(abort(*stub_, "mine").found());
  EXPECT_TRUE(engine_->cancelled(id));
  engine_->finish(id, FinishReason::cancelled);
  EXPECT_TRUE(stream.finish().ok());
  EXPECT_EQ(stream.last().finish_reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_FALSE(abort(*stub_, "mine").found());
  EXPECT_FALSE(abort(*stub_, "never was").found());
}

TEST_F(Grpc, ANameIsFreeAgainWhenTheLastMessageHasCome) {
  v1::GenerateRequest request = text_request("hi");
  request.set_request_id("mine");
  for (int round = 0; round < 100; ++round) {
    ClientStream stream(*stub_, request);
    engine_->finish(next_request(), FinishReason::stop);
    ASSERT_TRUE(stream.finish().ok()) << round;
  }
}

TEST_F(Grpc, TwoGenerationsOfOneNameAreRefused) {
  v1::GenerateRequest request = text_request("hi");
  request.set_request_id("mine");
  ClientStream first(*stub_, request);
  const RequestId id = next_request();
  ClientStream second(*stub_, request);
  const grpc::Status status = second.finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(status.error_message(), HasSubstr("mine"));
  EXPECT_TRUE(abort(*stub_, "mine").found()) << "the first still has its name";
  engine_->finish(id, FinishReason::cancelled);
  EXPECT_TRUE(first.finish().ok());
}

TEST_F(Grpc, AFailedGenerationEndsWithItsStatus) {
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  engine_->emit(id, "a");
  engine_->finish(id, FinishReason::failed, absl::InternalError("the engine broke"));
  const grpc::Status status = stream.finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(status.error_message(), "the engine broke");
  EXPECT_EQ(stream.last().finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
}

TEST_F(Grpc, TheEnginesRefusalsBecomeStatuses) {
  for (const absl::Status& refusal :
       {absl::ResourceExhaustedError("the queue is full"), absl::UnavailableError("draining"),
        absl::InvalidArgumentError("5000 tokens do not fit into 2048")}) {
    engine_->refuse_with(refusal);
    const grpc::Status status = ClientStream(*stub_, text_request("hi")).finish();
    EXPECT_EQ(static_cast<int>(status.error_code()), static_cast<int>(refusal.code()));
    EXPECT_EQ(status.error_message(), std::string(refusal.message()));
  }
}

TEST_F(Grpc, BadFieldsAreNamed) {
  const auto refusal = [&](const std::function<void(v1::GenerateRequest&)>& change) {
    v1::GenerateRequest request = text_request("hi");
    change(request);
    const grpc::Status status = ClientStream(*stub_, request).finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  using R = v1::GenerateRequest;
  EXPECT_THAT(refusal([](R& r) { r.clear_text(); }), HasSubstr("prompt"));
  EXPECT_THAT(refusal([](R& r) { r.set_max_tokens(0); }), HasSubstr("max_tokens"));
  EXPECT_THAT(refusal([](R& r) { r.add_stop(""); }), HasSubstr("stop"));
  EXPECT_THAT(refusal([](R& r) {
                for (int i = 0; i < 17; ++i) r.add_stop("x");
              }),
              AllOf(HasSubstr("stop"), HasSubstr("17"), HasSubstr("16")));
  EXPECT_THAT(refusal([](R& r) { r.set_request_id(std::string(129, 'x')); }),
              AllOf(HasSubstr("request_id"), HasSubstr("129")));
  EXPECT_THAT(refusal([](R& r) { r.mutable_chat()->add_messages()->set_role("villain"); }),
              HasSubstr("no villains"));
  EXPECT_EQ(engine_->requests(), 0U);
}

TEST_F(Grpc, AClientThatReadsTooSlowlyLosesItsRequest) {
  start({.address = "127.0.0.1", .port = 0, .max_pending_tokens = 8});
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  int emitted = 0;
  for (; !engine_->cancelled(id) && emitted < 10'000'000; ++emitted) {
    engine_->emit(id, "a");
  }
  ASSERT_TRUE(engine_->cancelled(id)) << "after " << emitted << " tokens";
  engine_->finish(id, FinishReason::cancelled);
  const grpc::Status status = stream.finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("too slowly"));
}

TEST_F(Grpc, ManyStreamsDoNotMix) {
  constexpr int kStreams = 32;
  constexpr int kTokens = 200;
  std::vector<std::thread> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([&, i] {
      const char letter = static_cast<char>('A' + i);
      ClientStream stream(*stub_, text_request(std::string(1, letter)));
      EXPECT_TRUE(stream.finish().ok());
      EXPECT_EQ(stream.text(), std::string(kTokens, letter));
    });
  }
  ASSERT_TRUE(engine_->wait_for_requests(kStreams));
  for (int token = 0; token < kTokens; ++token) {
    for (RequestId id = 0; id < kStreams; ++id) {
      engine_->emit(id, std::string(1, static_cast<char>(engine_->request(id).prompt.back())));
    }
  }
  for (RequestId id = 0; id < kStreams; ++id) {
    engine_->finish(id, FinishReason::length);
  }
  for (std::thread& client : clients) {
    client.join();
  }
}

}  // namespace
}  // namespace tessera
