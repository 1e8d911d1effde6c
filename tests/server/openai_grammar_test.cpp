#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "server/anthropic/messages_request.h"
#include "server/json/body_fields.h"
#include "server/openai/embeddings_request.h"
#include "server/openai/request.h"
#include "server/responses/responses_request.h"

namespace tessera {
namespace {

GrammarSpec grammar_of(const std::string& fields) {
  const auto request = parse_completion_request(R"({"prompt":"hi",)" + fields + "}");
  EXPECT_TRUE(request.ok()) << request.status();
  const std::optional<GrammarSpec> spec = request.value_or(CompletionRequest()).each.grammar;
  return spec.value_or(GrammarSpec{.text = "none"});
}

TEST(CompletionRequest, ReadsGrammarsByTheNamesOfAllServers) {
  using Notation = GrammarSpec::Kind;
  const GrammarSpec schema{Notation::json_schema, R"({"type":"integer"})"};
  for (const char* const fields :
       {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,
            "schema":{"type":"integer"}}})",
        R"("response_format":{"type":"json_object","schema":{"type":"integer"}})",
        R"("guided_json":{"type":"integer"})", R"("guided_json":"{\"type\":\"integer\"}")",
        R"("json_schema":{"type":"integer"})",
        R"("structured_outputs":{"json":{"type":"integer"},"regex":null})"}) {
    EXPECT_EQ(grammar_of(fields), schema) << fields;
  }
  EXPECT_EQ(grammar_of(R"("response_format":{"type":"json_object"})").kind, Notation::json);
  EXPECT_EQ(grammar_of(R"("guided_regex":"a+")"), (GrammarSpec{Notation::regex, "a+"}));
  const GrammarSpec choice{Notation::gbnf, R"(root ::= "a\"b" | "c")"};
  EXPECT_EQ(grammar_of(R"("guided_choice":["a\"b","c"])"), choice);
  EXPECT_EQ(grammar_of(R"("grammar":"root ::= \"a\\\"b\" | \"c\"")"), choice);
}

TEST(CompletionRequest, KeepsThePropertiesOfASchemaInTheirOrder) {
  EXPECT_EQ(grammar_of(R"("guided_json":{"properties":{"z":{"type":"null"},"a":{"type":"null"}},
                           "type":"object"})")
                .text,
            R"({"properties":{"z":{"type":"null"},"a":{"type":"null"}},"type":"object"})");
}

// The time to parse a value that is not a text is bounded. A prompt may be as long as a body.
TEST(CompletionRequest, RefusesALongMemberBeforeItIsParsedUnlessItHoldsText) {
  const std::string text(kMaxOtherMember, 'x');
  for (const std::string& fields :
       {R"("guided_json":{"const":")" + text + R"("})", R"("grammar":")" + text + R"(")",
        R"("guided_choice":[")" + text + R"("])", R"("unknown":")" + text + R"(")",
        R"("tools":")" + text + R"(","x":no JSON)"}) {
    const auto status = parse_completion_request(R"({"prompt":"hi",)" + fields + "}").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("has more than 524288 bytes"));
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(fields.substr(1, 5)));
  }
  EXPECT_EQ(parse_messages_request(R"({"output_config":")" + text + R"("})").status().message(),
            "output_config has more than 524288 bytes");
  EXPECT_EQ(parse_responses_request(R"({"text":")" + text + R"("})").status().message(),
            "text has more than 524288 bytes");
}

TEST(CompletionRequest, ReadsALongTextByEachOfItsNames) {
  const std::string text(kMaxOtherMember, 'x');
  const std::string chat = R"("messages":[{"role":"user","content":")" + text + R"("}])";
  EXPECT_TRUE(parse_completion_request(R"({"prompt":")" + text + R"("})").ok());
  EXPECT_TRUE(parse_chat_request("{" + chat + "}").ok());
  EXPECT_TRUE(parse_messages_request(R"({"model":"m","max_tokens":1,"system":")" + text + R"(",)" +
                                     chat + "}")
                  .ok());
  EXPECT_TRUE(
      parse_responses_request(R"({"input":")" + text + R"(","instructions":")" + text + R"("})")
          .ok());
  EXPECT_TRUE(parse_tokenize_request(R"({"content":")" + text + R"("})").ok());
  EXPECT_TRUE(parse_embeddings_request(R"({"input":")" + text + R"("})").ok());
  std::string ids = "1";
  while (ids.size() <= kMaxOtherMember) {
    ids += ",1";
  }
  EXPECT_TRUE(parse_detokenize_request(R"({"tokens":[)" + ids + "]}").ok());
}

// A call's arguments are text that a model wrote: a file, for instance.
TEST(ChatRequest, ReadsACallWithLongArguments) {
  const std::string text(kMaxOtherMember, 'x');
  const auto request = parse_chat_request(
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[)"
      R"({"id":"1","type":"function","function":{"name":"f","arguments":"{\"file\":\")" +
      text + R"(\"}"}}]}]})");
  EXPECT_TRUE(request.ok()) << request.status();
}

}  // namespace
}  // namespace tessera
