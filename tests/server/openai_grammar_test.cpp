#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "server/openai/request.h"

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

}  // namespace
}  // namespace tessera
