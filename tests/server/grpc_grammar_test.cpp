#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/server/grpc_fixture.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST_F(Grpc, WaitsForAGrammarOfEveryKind) {
  const auto set = [](v1::Grammar& grammar, int kind) {
    switch (kind) {
      case 0:
        return grammar.set_json_object(true);
      case 1:
        return grammar.set_json_schema(R"({"type":"integer"})");
      case 2:
        return grammar.set_regex("slow");
      case 3:
        return grammar.set_gbnf("root ::= \"a\"");
      case 4:
        return grammar.mutable_choice()->add_texts("a");
      default:
        return grammar.set_structural_tag("{}");
    }
  };
  for (int kind = 0; kind < 6; ++kind) {
    v1::GenerateRequest request = text_request("hi");
    set(*request.mutable_grammar(), kind);
    ClientStream stream(*stub_, request);
    const RequestId id = next_request();
    EXPECT_NE(engine_->request(id).grammar, nullptr) << kind;
    engine_->emit(id, "a");
    engine_->finish(id, FinishReason::stop);
    EXPECT_TRUE(stream.finish().ok());
    EXPECT_EQ(stream.text(), "a");
  }
}

TEST_F(Grpc, RefusesAGrammarByName) {
  v1::GenerateRequest request = text_request("hi");
  request.mutable_grammar()->set_json_schema(R"({"not":{}})");
  grpc::Status status = ClientStream(*stub_, request).finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("$.not"));
  request.mutable_grammar()->set_regex("bad");  // the compiler refuses it
  status = ClientStream(*stub_, request).finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("grammar.regex: is bad"));
  request.set_ignore_eos(true);
  status = ClientStream(*stub_, request).finish();
  EXPECT_THAT(status.error_message(), HasSubstr("ignore_eos"));
  EXPECT_EQ(engine_->requests(), 0);
}

TEST_F(Grpc, NeverSubmitsARequestWhoseClientLeftWhileItWaitedForItsGrammar) {
  v1::GenerateRequest request = text_request("hi");
  request.mutable_grammar()->set_regex("slow");
  ClientStream stream(*stub_, request);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  stream.cancel();
  EXPECT_EQ(stream.finish().error_code(), grpc::StatusCode::CANCELLED);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_EQ(engine_->requests(), 0);
}

}  // namespace
}  // namespace tessera
