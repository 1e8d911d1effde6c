// Chats with tools over gRPC, and the fields that only streams or refusals show. parity_test.cpp
// compares them with HTTP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "server/grpc/chat_message.h"
#include "tests/server/grpc_fixture.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::GenerateRequest chat_request() {
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("hi");
  return request;
}

v1::Tool& add_tool(v1::GenerateRequest& request, const std::string& name) {
  v1::Tool& tool = *request.mutable_chat()->add_tools();
  tool.set_name(name);
  return tool;
}

TEST_F(Grpc, StreamsTheArgumentsOfACallWhileTheyAreWritten) {
  v1::GenerateRequest request = chat_request();
  add_tool(request, "f");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  const RequestId id = next_request();
  engine_->emit(id, "Well.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"");
  v1::GenerateResponse message;
  std::string text;
  std::string arguments;
  while (arguments != "{\"a\"" && reader->Read(&message)) {
    text += message.text();
    for (const v1::ToolCallPart& part : message.tool_calls()) {
      arguments += part.arguments();
    }
  }
  EXPECT_EQ(text, "Well.");
  EXPECT_EQ(message.finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  engine_->emit(id, ": 1}}</tool_call>");
  engine_->finish(id, FinishReason::stop);
  while (reader->Read(&message)) {
    for (const v1::ToolCallPart& part : message.tool_calls()) {
      EXPECT_EQ(part.index(), 0);
      arguments += part.arguments();
    }
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(arguments, "{\"a\": 1}");
  EXPECT_EQ(message.finish_reason(), v1::FINISH_REASON_TOOL_CALLS);
}

TEST_F(Grpc, TheLastOfOneCallEndsTheGeneration) {
  v1::GenerateRequest request = chat_request();
  add_tool(request, "f");
  request.mutable_chat()->set_parallel_tool_calls(false);
  ClientStream stream(*stub_, request);
  const RequestId id = next_request();
  engine_->emit(id, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>more");
  ASSERT_TRUE(engine_->wait_for_cancel(id));
  engine_->finish(id, FinishReason::cancelled);
  EXPECT_TRUE(stream.finish().ok());
  EXPECT_EQ(stream.text(), "");
  EXPECT_EQ(stream.last().finish_reason(), v1::FINISH_REASON_TOOL_CALLS);
}

TEST_F(Grpc, NamesTheStopStringThatWasFound) {
  v1::GenerateRequest request = text_request("hi");
  request.add_stop("x");
  request.add_stop("END");
  ClientStream stream(*stub_, request);
  const RequestId id = next_request();
  engine_->emit(id, "abEND");
  ASSERT_TRUE(engine_->wait_for_cancel(id));
  engine_->finish(id, FinishReason::cancelled);
  EXPECT_TRUE(stream.finish().ok());
  EXPECT_EQ(stream.last().stop_text(), "END");
}

TEST_F(Grpc, EchoesALongPromptInSeveralMessages) {
  std::string prompt;
  while (prompt.size() < 90'000) {
    prompt += "\xe2\x82\xac";  // three bytes: no message ends inside of one
  }
  v1::GenerateRequest request = text_request(prompt);
  request.set_echo(true);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  const RequestId id = next_request();
  engine_->emit(id, "abc");
  engine_->finish(id, FinishReason::stop);
  std::string text;
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    EXPECT_LE(message.ByteSizeLong(), 100'000U);
    EXPECT_NE(message.text().empty() ? 0 : message.text().front() & 0xC0, 0x80);
    text += message.text();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, prompt + "abc");
}

TEST_F(Grpc, SendsTheMostLikelyOfSeveralSequences) {
  v1::GenerateRequest request = text_request("hi");
  request.set_n(2);
  request.set_best_of(3);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  ASSERT_TRUE(engine_->wait_for_requests(3));
  EXPECT_EQ(engine_->request(0).sampling.top_logprobs, 0);
  const auto emit = [&](RequestId id, char letter, float logprob) {
    engine_->emit(id, TokenLogprobs{.chosen = {letter, logprob}, .top = {}});
  };
  emit(0, 'a', -2);
  emit(1, 'b', -9);
  emit(2, 'c', -1);
  for (RequestId id = 0; id < 3; ++id) {
    engine_->finish(id, FinishReason::stop);
  }
  std::vector<std::string> texts(2);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    ASSERT_LT(message.index(), 2);
    texts[static_cast<std::size_t>(message.index())] += message.text();
    EXPECT_EQ(message.logprobs_size(), 0) << "they were not asked for";
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(texts, ElementsAre("c", "a"));
  EXPECT_EQ(message.usage().completion_tokens(), 3) << "all sequences count";
}

TEST_F(Grpc, TokenizesChatsAndShowsTexts) {
  v1::TokenizeRequest request;
  *request.mutable_chat() = chat_request().chat();
  request.mutable_chat()->set_add_generation_prompt(false);
  request.set_return_texts(true);
  grpc::ClientContext context;
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&context, request, &tokens).ok());
  EXPECT_THAT(tokens.ids(), ElementsAre(kBos, '[', 'u', 's', 'e', 'r', ']', 'h', 'i'));
  ASSERT_EQ(tokens.texts_size(), 9);
  EXPECT_EQ(tokens.texts(0), "<s>");
  EXPECT_EQ(tokens.texts(8), "i");
}

TEST_F(Grpc, RefusesBadChatsByName) {
  const auto refusal = [&](const std::function<void(v1::GenerateRequest&)>& change) {
    v1::GenerateRequest request = chat_request();
    change(request);
    const grpc::Status status = ClientStream(*stub_, request).finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  using R = v1::GenerateRequest;
  EXPECT_THAT(refusal([](R& r) { r.mutable_chat()->clear_messages(); }),
              HasSubstr("chat.messages must have at least one"));
  EXPECT_THAT(refusal([](R& r) { r.mutable_chat()->add_messages(); }),
              HasSubstr("chat.messages[1].role is missing"));
  EXPECT_THAT(
      refusal([](R& r) { r.mutable_chat()->mutable_messages(0)->add_tool_calls()->set_name("f"); }),
      HasSubstr("chat.messages[0].tool_calls must be of a message of the role assistant"));
  EXPECT_THAT(refusal([](R& r) {
                v1::ChatMessage& message = *r.mutable_chat()->add_messages();
                message.set_role("assistant");
                message.add_tool_calls();
              }),
              HasSubstr("chat.messages[1].tool_calls[0].name is missing"));
  EXPECT_THAT(refusal([](R& r) { add_tool(r, "no blanks"); }), HasSubstr("chat.tools[0].name"));
  EXPECT_THAT(refusal([](R& r) { add_tool(r, "f").set_parameters("{"); }),
              HasSubstr("chat.tools[0].parameters must be the text of a JSON object"));
  EXPECT_THAT(refusal([](R& r) {
                v1::Tool& tool = add_tool(r, "f");
                tool.set_strict(true);
                tool.set_parameters(R"({"not":{}})");
                r.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
              }),
              HasSubstr("$.not"));
  EXPECT_THAT(refusal([](R& r) { r.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_REQUIRED); }),
              HasSubstr("there are no tools"));
  EXPECT_THAT(refusal([](R& r) {
                add_tool(r, "f");
                r.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
                r.mutable_chat()->set_required_tool("g");
              }),
              HasSubstr("chat.required_tool"));
  EXPECT_THAT(
      refusal([](R& r) { r.mutable_chat()->set_tool_choice(static_cast<v1::ToolChoice>(77)); }),
      AllOf(HasSubstr("chat.tool_choice"), HasSubstr("77")));
  EXPECT_THAT(refusal([](R& r) {
                for (int i = 0; i < 513; ++i) add_tool(r, "f");
              }),
              AllOf(HasSubstr("513"), HasSubstr("512")));
  EXPECT_THAT(refusal([](R& r) { r.mutable_chat()->set_template_variables("7"); }),
              HasSubstr("chat.template_variables"));
  EXPECT_THAT(refusal([](R& r) { r.mutable_chat()->set_reasoning_effort("most"); }),
              HasSubstr("chat.reasoning_effort must be one of none"));
  EXPECT_THAT(refusal([](R& r) { r.mutable_chat()->set_continue_final_message(true); }),
              HasSubstr("chat.continue_final_message"));
  EXPECT_THAT(refusal([](R& r) { r.set_echo(true); }), HasSubstr("echo"));
  EXPECT_THAT(refusal([](R& r) {
                r.set_n(3);
                r.set_best_of(2);
              }),
              HasSubstr("best_of is 2"));
  EXPECT_EQ(engine_->requests(), 0U);
}

TEST_F(Grpc, RefusesAnotherModel) {
  v1::GenerateRequest request = text_request("hi");
  request.set_model("gpt");
  const grpc::Status status = ClientStream(*stub_, request).finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("gpt"), HasSubstr("fake")));
}

// The server's own answer has such arguments if max_tokens cut it off.
TEST(GrpcChat, KeepsArgumentsOfAnyTextInTheHistory) {
  v1::Chat chat;
  v1::ChatMessage& message = *chat.add_messages();
  message.set_role("assistant");
  message.add_tool_calls()->set_name("f");
  message.mutable_tool_calls(0)->set_arguments("{\"a\": \"cut o");
  const auto read = parse_chat(chat);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->conversation.messages.at(0).tool_calls.at(0).arguments, "{\"a\": \"cut o");
}

}  // namespace
}  // namespace tessera
