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
  request.set_logprobs(4);
  request.set_prompt_logprobs(5);
  request.set_add_special_tokens(false);
  ClientStream stream(*stub_, request);
  const RequestId id = next_request();
  const EngineRequest submitted = engine_->request(id);
  EXPECT_THAT(submitted.prompt, ElementsAre('h', 'i'));
  EXPECT_EQ(submitted.sampling.top_logprobs, 4);
  EXPECT_EQ(submitted.sampling.prompt_logprobs, 5);
  ASSERT_TRUE(submitted.deadline.has_value());
  EXPECT_LT(*submitted.deadline, std::chrono::steady_clock::now() + 2 * kPatience);
  EXPECT_GT(*submitted.deadline, std::chrono::steady_clock::now());
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

TEST_F(Grpc, ADeterministicRequestHasTheSameSeedEachTime) {
  v1::GenerateRequest request = text_request("hi");
  request.set_deterministic(true);
  for (int i = 0; i < 2; ++i) {
    ClientStream stream(*stub_, request);
    engine_->finish(next_request(), FinishReason::stop);
    EXPECT_TRUE(stream.finish().ok());
  }
  EXPECT_EQ(engine_->request(0).sampling.seed, engine_->request(1).sampling.seed);
}

TEST_F(Grpc, ASeedOfMinusOneIsRandom) {
  v1::GenerateRequest request = text_request("hi");
  request.mutable_sampling()->set_seed(static_cast<uint64_t>(-1));
  for (int i = 0; i < 2; ++i) {
    ClientStream stream(*stub_, request);
    engine_->finish(next_request(), FinishReason::stop);
    EXPECT_TRUE(stream.finish().ok());
  }
  EXPECT_NE(engine_->request(0).sampling.seed, engine_->request(1).sampling.seed);
}

TEST_F(Grpc, StreamsSeveralSequencesByTheirIndex) {
  v1::GenerateRequest request = text_request("hi");
  request.set_n(2);
  request.mutable_sampling()->set_seed(8);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  ASSERT_TRUE(engine_->wait_for_requests(2));
  EXPECT_EQ(engine_->request(0).sampling.seed, 8u);
  EXPECT_EQ(engine_->request(1).sampling.seed, 9u);
  engine_->emit(0, "abc");
  engine_->emit(1, "xy");
  engine_->finish(1, FinishReason::stop);
  engine_->emit(0, "d");
  engine_->finish(0, FinishReason::length);
  std::string texts[2];
  v1::FinishReason reasons[2] = {};
  v1::GenerateResponse message;
  int usages = 0;
  while (reader->Read(&message)) {
    const auto index = static_cast<std::size_t>(message.index());
    ASSERT_LT(index, 2U);
    EXPECT_EQ(reasons[index], v1::FINISH_REASON_UNSPECIFIED) << "a message after its last";
    EXPECT_EQ(usages, 0) << "a message after the stream's last";
    texts[index] += message.text();
    reasons[index] = message.finish_reason();
    usages += message.has_usage() ? 1 : 0;
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(texts[0], "abcd");
  EXPECT_EQ(texts[1], "xy");
  EXPECT_EQ(reasons[0], v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(reasons[1], v1::FINISH_REASON_STOP);
  EXPECT_EQ(usages, 1);
  EXPECT_EQ(message.usage().completion_tokens(), 6);
  EXPECT_EQ(message.usage().prompt_tokens(), 3);
}

TEST_F(Grpc, AStopTextEndsItsOwnSequenceOnly) {
  v1::GenerateRequest request = text_request("hi");
  request.set_n(2);
  request.add_stop("END");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  ASSERT_TRUE(engine_->wait_for_requests(2));
  engine_->emit(0, "abEND");
  ASSERT_TRUE(engine_->wait_for_cancel(0));
  EXPECT_FALSE(engine_->cancelled(1));
  engine_->finish(0, FinishReason::cancelled);
  engine_->emit(1, "xy");
  engine_->finish(1, FinishReason::length);
  std::string texts[2];
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    texts[message.index()] += message.text();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(texts[0], "ab");
  EXPECT_EQ(texts[1], "xy");
}

TEST_F(Grpc, OneSequenceThatFailsEndsTheCallAndTheOthers) {
  v1::GenerateRequest request = text_request("hi");
  request.set_n(2);
  ClientStream stream(*stub_, request);
  ASSERT_TRUE(engine_->wait_for_requests(2));
  engine_->finish(0, FinishReason::failed, absl::InternalError("the engine broke"));
  EXPECT_EQ(stream.finish().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_TRUE(engine_->wait_for_cancel(1));
  engine_->finish(1, FinishReason::cancelled);
}

TEST_F(Grpc, ReportsLogprobsOfThePromptAndOfEachToken) {
  v1::GenerateRequest request;
  for (int i = 0; i < 600; ++i) {  // more than one message can hold
    request.mutable_tokens()->add_ids('p');
  }
  request.set_logprobs(1);
  request.set_prompt_logprobs(1);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  const RequestId id = next_request();
  const TokenLogprob top[] = {{'q', -0.5f}};
  for (int i = 1; i < 600; ++i) {
    engine_->emit_prompt(id, TokenLogprobs{.chosen = {'p', static_cast<float>(-i)}, .top = top});
  }
  engine_->emit(id, TokenLogprobs{.chosen = {'x', -2}, .top = top});
  engine_->finish(id, FinishReason::length);
  std::vector<v1::TokenLogprobs> prompt;
  std::vector<v1::TokenLogprobs> tokens;
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    EXPECT_TRUE(tokens.empty() || message.prompt().empty()) << "the prompt comes first";
    EXPECT_LE(message.prompt_size(), 256);
    prompt.insert(prompt.end(), message.prompt().begin(), message.prompt().end());
    tokens.insert(tokens.end(), message.logprobs().begin(), message.logprobs().end());
  }
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_EQ(prompt.size(), 600U);
  EXPECT_FALSE(prompt[0].chosen().has_logprob());
  EXPECT_EQ(prompt[0].chosen().token_id(), 'p');
  for (std::size_t i = 1; i < 600; ++i) {
    ASSERT_EQ(prompt[i].chosen().logprob(), -static_cast<float>(i));
  }
  EXPECT_EQ(prompt[1].top(0).text(), "q");
  ASSERT_EQ(tokens.size(), 1U);
  EXPECT_EQ(tokens[0].chosen().logprob(), -2);
  EXPECT_EQ(tokens[0].chosen().text(), "x");
  EXPECT_EQ(tokens[0].top(0).logprob(), -0.5f);
}

TEST_F(Grpc, WhatTheEngineGivesUpAtADeadlineEndsWithThatStatus) {
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  engine_->finish(id, FinishReason::cancelled, absl::DeadlineExceededError("too late"));
  EXPECT_EQ(stream.finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
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
  EXPECT_THAT(refusal([](R& r) { r.set_max_tokens(-1); }), HasSubstr("max_tokens"));
  EXPECT_THAT(refusal([](R& r) { r.set_n(0); }), AllOf(HasSubstr("n is 0"), HasSubstr("128")));
  EXPECT_THAT(refusal([](R& r) { r.set_n(129); }), HasSubstr("n is 129"));
  EXPECT_THAT(refusal([](R& r) { r.set_text(std::string(100'000, 'x')); }),
              AllOf(HasSubstr("100001 tokens"), HasSubstr("100000 tokens")));
  EXPECT_THAT(refusal([](R& r) { r.add_stop(""); }), HasSubstr("stop"));
  EXPECT_THAT(refusal([](R& r) {
                for (int i = 0; i < 65; ++i) r.add_stop("x");
              }),
              AllOf(HasSubstr("stop"), HasSubstr("65"), HasSubstr("64")));
  EXPECT_THAT(refusal([](R& r) { r.set_request_id(std::string(129, 'x')); }),
              AllOf(HasSubstr("request_id"), HasSubstr("129")));
  EXPECT_THAT(refusal([](R& r) { r.mutable_chat()->add_messages()->set_role("villain"); }),
              HasSubstr("no villains"));
  EXPECT_EQ(engine_->requests(), 0U);
}

TEST_F(Grpc, AClientThatReadsTooSlowlyLosesItsRequestWhenOthersNeedTheMemory) {
  start({.address = "127.0.0.1", .port = 0});
  ClientStream stream(*stub_, text_request("hi"));
  const RequestId id = next_request();
  const std::size_t before = fake_->budget.used();
  int emitted = 0;
  for (; fake_->budget.used() == before && emitted < 10'000'000; ++emitted) {
    engine_->emit(id, "a");
  }
  ASSERT_GT(fake_->budget.used(), before) << "after " << emitted << " tokens";
  const auto others = fake_->budget.take(fake_->budget.bytes() - fake_->budget.used());
  for (; !engine_->cancelled(id) && emitted < 20'000'000; ++emitted) {
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
