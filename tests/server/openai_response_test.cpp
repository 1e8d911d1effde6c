#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/base/error.h"
#include "server/openai/response.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr int64_t kCreated = 1'700'000'000;

CompletionHead head(bool chat, std::optional<int32_t> logprobs = std::nullopt) {
  return {.chat = chat,
          .id = "id-1",
          .created = kCreated,
          .model = "m",
          .logprobs = logprobs,
          .fingerprint = "fp_1"};
}

json event_json(const std::string& event) {
  EXPECT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n")) << event;
  return json::parse(event.substr(6));
}

TEST(CompletionResponse, HasOpenAisShape) {
  const ChoiceText choices[] = {{.index = 0, .text = "a", .finish_reason = "stop"},
                                {.index = 1, .text = "b", .finish_reason = "length"}};
  const Usage usage{.prompt_tokens = 5, .completion_tokens = 7, .cached_tokens = 2};
  EXPECT_EQ(json::parse(print_completion(head(false), choices, usage)), json::parse(R"({
    "id":"id-1","object":"text_completion","created":1700000000,"model":"m",
    "system_fingerprint":"fp_1",
    "choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":"stop"},
               {"index":1,"text":"b","logprobs":null,"finish_reason":"length"}],
    "usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,
             "prompt_tokens_details":{"cached_tokens":2}}})"));
  const json chat = json::parse(print_completion(head(true), choices, usage));
  EXPECT_EQ(chat.at("object"), "chat.completion");
  EXPECT_EQ(chat.at("choices").at(0).at("message"),
            json::parse(R"({"role":"assistant","content":"a"})"));
}

TEST(CompletionEvent, NamesAChatsRoleOnceAndTheReasonAtTheEnd) {
  const json first =
      event_json(print_event(head(true), {.index = 0, .text = "Hi", .first = true}, std::nullopt));
  EXPECT_EQ(first.at("object"), "chat.completion.chunk");
  EXPECT_EQ(first.at("choices").at(0).at("delta"),
            json::parse(R"({"role":"assistant","content":"Hi"})"));
  EXPECT_TRUE(first.at("choices").at(0).at("finish_reason").is_null());
  EXPECT_FALSE(first.contains("usage"));
  const json last =
      event_json(print_event(head(true), {.index = 0, .finish_reason = "stop"}, std::nullopt));
  EXPECT_EQ(last.at("choices").at(0).at("delta"), json::object());
  EXPECT_EQ(last.at("choices").at(0).at("finish_reason"), "stop");
}

TEST(CompletionEvent, HasANullUsageWhenTheLastOneTells) {
  CompletionHead with_usage = head(false);
  with_usage.usage = true;
  const json part = event_json(print_event(with_usage, {.text = "x"}, std::nullopt));
  EXPECT_EQ(part.at("choices").at(0).at("text"), "x");
  EXPECT_TRUE(part.at("usage").is_null());
  const json last = event_json(print_usage_event(with_usage, {.prompt_tokens = 3}));
  EXPECT_EQ(last.at("choices"), json::array());
  EXPECT_EQ(last.at("usage").at("total_tokens"), 3);
}

TEST(CompletionResponse, PrintsLogprobsOfCompletions) {
  ChoiceText choice{.text = "\xc3\xa9t", .finish_reason = "stop"};
  choice.tokens = {{.token = {"\xc3\xa9", -0.5f},
                    .top = {{"\xc3\xa9", -0.5f}, {"e", -1}},
                    .text = "\xc3\xa9",
                    .offset = 4},
                   {.token = {"t", -3}, .top = {{"s", -2}}, .text = "t", .offset = 5}};
  const json logprobs =
      json::parse(print_completion(head(false, 2), {&choice, 1}, {}))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs, json::parse(R"({"text_offset":[4,5],"token_logprobs":[-0.5,-3.0],
      "tokens":["é","t"],"top_logprobs":[{"é":-0.5,"e":-1.0},{"s":-2.0,"t":-3.0}]})"));
}

TEST(CompletionResponse, KeepsApartTokensThatAreNoTextAndTakesTheLikeliestOfThoseAlike) {
  ChoiceText choice{.text = "?", .finish_reason = "stop"};
  choice.tokens = {{.token = {"\xe2", -5},
                    .top = {{"\xc3", -1}, {"a", -2}, {"a", -3}, {"z", -4}},
                    .text = "\xe2",
                    .offset = 0}};
  const json logprobs =
      json::parse(print_completion(head(false, 3), {&choice, 1}, {}))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs.at("tokens"), json::parse(R"(["bytes:\\xe2"])"));
  EXPECT_EQ(logprobs.at("top_logprobs").at(0),
            json::parse(R"({"bytes:\\xc3":-1.0,"a":-2.0,"bytes:\\xe2":-5.0})"));
}

TEST(CompletionResponse, PrintsLogprobsOfChatsWithBytes) {
  ChoiceText choice{.text = "?", .finish_reason = "stop"};
  // an incomplete UTF-8 character
  choice.tokens = {{.token = {"\xe2\x82", -1}, .top = {{"\xe2\x82", -1}}}};
  const json content = json::parse(
      print_completion(head(true, 1), {&choice, 1}, {}))["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content, json::parse(R"([{"token":"\ufffd","logprob":-1.0,"bytes":[226,130],
      "top_logprobs":[{"token":"\ufffd","logprob":-1.0,"bytes":[226,130]}]}])"));
}

TEST(ModelList, TellsNameAndContext) {
  const json models = json::parse(print_models({{{"m", kCreated, 2048, "m"}}}));
  EXPECT_EQ(models.at("object"), "list");
  EXPECT_EQ(models.at("data").at(0).at("id"), "m");
  EXPECT_EQ(models.at("data").at(0).at("max_model_len"), 2048);
  EXPECT_EQ(json::parse(print_model({"m", kCreated, 2048, "m"})), models.at("data").at(0));
}

struct Code {
  absl::Status status;
  int http;
  const char* type;
};

TEST(ErrorResponse, MapsEveryStatusOnce) {
  const Code codes[] = {{absl::InvalidArgumentError("x"), 400, "invalid_request_error"},
                        {absl::OutOfRangeError("x"), 400, "invalid_request_error"},
                        {absl::FailedPreconditionError("x"), 400, "invalid_request_error"},
                        {absl::UnauthenticatedError("x"), 401, "authentication_error"},
                        {absl::PermissionDeniedError("x"), 403, "permission_error"},
                        {absl::NotFoundError("x"), 404, "invalid_request_error"},
                        {absl::AbortedError("x"), 409, "invalid_request_error"},
                        {absl::ResourceExhaustedError("x"), 429, "rate_limit_error"},
                        {absl::CancelledError("x"), 499, "invalid_request_error"},
                        {absl::InternalError("x"), 500, "server_error"},
                        {absl::UnknownError("x"), 500, "server_error"},
                        {absl::DataLossError("x"), 500, "server_error"},
                        {absl::UnimplementedError("x"), 501, "server_error"},
                        {absl::UnavailableError("x"), 503, "server_error"},
                        {absl::DeadlineExceededError("x"), 504, "server_error"}};
  for (const Code& code : codes) {
    SCOPED_TRACE(code.status);
    EXPECT_EQ(http_status(code.status), code.http);
    EXPECT_EQ(json::parse(print_error(code.status)).at("error").at("type"), code.type);
  }
}

TEST(ErrorResponse, HasOpenAisShape) {
  EXPECT_EQ(json::parse(print_error(invalid_field("n", "n is odd", "odd"))), json::parse(R"({
    "error":{"message":"n is odd","type":"invalid_request_error","param":"n","code":"odd"}})"));
  EXPECT_EQ(json::parse(print_error(absl::InternalError("a \xff b"))).at("error"), json::parse(R"({
    "message":"a \ufffd b","type":"server_error","param":null,"code":null})"));
}

}  // namespace
}  // namespace tessera
