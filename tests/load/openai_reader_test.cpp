#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "load/client/openai.h"
#include "load/client/sse.h"
#include "load/request/json_text.h"

namespace tessera::load {
namespace {

using testing::ElementsAre;

std::vector<std::string> payloads(const std::vector<std::string>& pieces) {
  SseReader reader;
  std::vector<std::string> found;
  for (const std::string& piece : pieces) {
    EXPECT_TRUE(reader.feed(piece, [&](std::string_view text) { found.emplace_back(text); }));
  }
  return found;
}

TEST(SseReader, CutsAtLineEndsWhereverThePiecesEnd) {
  const std::string stream = "data: {\"a\": 1}\n\n: ping\r\ndata:b\r\n\r\nevent: x\ndata: c\n\n";
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    EXPECT_THAT(payloads({stream.substr(0, cut), stream.substr(cut)}),
                ElementsAre("{\"a\": 1}", "b", "c"));
  }
}

TEST(SseReader, RefusesAnEndlessLine) {
  SseReader reader;
  const std::string piece(SseReader::kMaxLine / 2 + 1, 'x');
  EXPECT_TRUE(reader.feed(piece, [](std::string_view) {}));
  EXPECT_FALSE(reader.feed(piece, [](std::string_view) {}));
}

struct Events final : GenerationEvents {
  void sent() override {}
  void received(std::string_view text) override { texts.emplace_back(text); }
  void ended(const GenerationEnd& how, const Answer& whole) override {
    ++ends;
    end = how;
    answer = whole;
  }
  std::vector<std::string> texts;
  GenerationEnd end;
  Answer answer;
  int ends = 0;
};

std::shared_ptr<Events> read(const HttpHead& head, const std::string& body,
                             CallEnd how = CallEnd::complete) {
  auto events = std::make_shared<Events>();
  const auto reader = make_openai_reader(events);
  reader->head(head);
  reader->body(body);
  reader->ended(how, "lost");
  EXPECT_EQ(events->ends, 1);
  return events;
}

const HttpHead kStream{.status = 200, .retry_after = "", .event_stream = true};

TEST(OpenAiReader, ReadsChatsAndCompletions) {
  const auto chat = read(
      kStream,
      "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
      "data: "
      "{\"choices\":[{\"delta\":{\"content\":\"Hi\"},\"logprobs\":{\"content\":[{},{}]}}]}\n\n"
      "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,"
      "\"total_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\ndata: [DONE]\n\n");
  EXPECT_EQ(chat->end.error, ErrorClass::none);
  EXPECT_THAT(chat->texts, ElementsAre("Hi"));
  EXPECT_EQ(chat->answer.counted_tokens, 2);
  EXPECT_EQ(chat->answer.finish_reason, "stop");
  EXPECT_EQ(chat->answer.usage->cached_tokens, 1);
  const auto completion =
      read(kStream,
           "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\n"
           "data: [DONE]\n\n");
  EXPECT_EQ(completion->answer.text, "a");
}

TEST(OpenAiReader, ClassifiesEveryEnd) {
  const auto error = [](const HttpHead& head, const std::string& body,
                        CallEnd how = CallEnd::complete) {
    return read(head, body, how)->end.error;
  };
  EXPECT_EQ(error(kStream, "data: {\"choices\":[]}\n\n"), ErrorClass::cut_short);
  EXPECT_EQ(error(kStream, "", CallEnd::broken), ErrorClass::cut_short);
  EXPECT_EQ(error(kStream, "data: {\n\ndata: [DONE]\n\n"), ErrorClass::malformed);
  EXPECT_EQ(error(kStream, "data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n"),
            ErrorClass::server_error);
  EXPECT_EQ(error({.status = 500, .retry_after = "", .event_stream = false}, "oh"),
            ErrorClass::server_error);
  EXPECT_EQ(error({.status = 400, .retry_after = "", .event_stream = false}, "no"),
            ErrorClass::client_error);
  EXPECT_EQ(error(kStream, "", CallEnd::timed_out), ErrorClass::timed_out);
}

TEST(OpenAiReader, KeepsRetryAfter) {
  const auto events = read({.status = 429, .retry_after = "2", .event_stream = false}, "busy");
  EXPECT_EQ(events->end.error, ErrorClass::rejected);
  EXPECT_EQ(events->end.retry_after, 2);
  EXPECT_EQ(events->end.message, "busy");
}

TEST(PrintBody, AsksForUsageAndCounts) {
  LoadRequest request;
  request.messages = {{"user", "Hi"}};
  request.count_tokens = true;
  request.max_tokens = 3;
  request.fields = {{"cache_salt", "t"}};
  const auto body = parse_json(print_body(request, "m"));
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_EQ(body["logprobs"], true);
  EXPECT_EQ(body["cache_salt"], "t");
  EXPECT_EQ(body["messages"][0]["content"], "Hi");
  EXPECT_FALSE(body["messages"][0].contains("tool_calls"));
  request.messages.clear();
  request.prompt = "Once";
  EXPECT_EQ(parse_json(print_body(request, "m"))["prompt"], "Once");
}

TEST(PrintBody, NamesTheCallOfAToolsResult) {
  LoadRequest request;
  request.messages = {{"assistant", "I search.", {{"call_1", "search", "{\"query\": \"cat\"}"}}},
                      {"tool", "{}", {}, "call_1"}};
  const auto messages = parse_json(print_body(request, "m"))["messages"];
  EXPECT_EQ(messages[0]["tool_calls"][0]["id"], "call_1");
  EXPECT_EQ(messages[0]["tool_calls"][0]["type"], "function");
  EXPECT_EQ(messages[0]["tool_calls"][0]["function"]["name"], "search");
  EXPECT_EQ(messages[0]["tool_calls"][0]["function"]["arguments"], "{\"query\": \"cat\"}");
  EXPECT_EQ(messages[1]["role"], "tool");
  EXPECT_EQ(messages[1]["tool_call_id"], "call_1");
}

}  // namespace
}  // namespace tessera::load
