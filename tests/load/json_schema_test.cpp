#include "load/check/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "load/request/json_text.h"
namespace tessera::load {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const json kPerson = parse_json(R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "minLength": 2, "maxLength": 3},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    "pet": {"anyOf": [{"type": "null"}, {"const": "cat"}]}
  },
  "required": ["name"],
  "additionalProperties": false
})");

TEST(JsonSchema, AcceptsWhatFits) {
  ASSERT_TRUE(check_schema(kPerson).ok());
  EXPECT_EQ(schema_violation(R"({"name": "Ann"})", kPerson), "");
  EXPECT_EQ(
      schema_violation(R"({"name": "\u00e4\u00e4\u00e4", "age": 7, "tags": ["a"], "pet": "cat"})",
                       kPerson),
      "");
}

TEST(JsonSchema, NamesThePlaceThatDoesNotFit) {
  EXPECT_THAT(schema_violation("{\"name\": ", kPerson), HasSubstr("not JSON"));
  EXPECT_THAT(schema_violation("[]", kPerson), HasSubstr("$: the type"));
  EXPECT_THAT(schema_violation("{}", kPerson), HasSubstr("'name' is missing"));
  EXPECT_THAT(schema_violation(R"({"name": "A"})", kPerson), HasSubstr("$.name"));
  EXPECT_THAT(schema_violation(R"({"name": "Ann", "age": 1.5})", kPerson), HasSubstr("$.age"));
  EXPECT_THAT(schema_violation(R"({"name": "Ann", "age": 151})", kPerson), HasSubstr("151"));
  EXPECT_THAT(schema_violation(R"({"name": "Ann", "tags": ["c"]})", kPerson),
              HasSubstr("$.tags[0]"));
  EXPECT_THAT(schema_violation(R"({"name": "Ann", "pet": "dog"})", kPerson), HasSubstr("anyOf"));
  EXPECT_THAT(schema_violation(R"({"name": "Ann", "size": 1})", kPerson), HasSubstr("not allowed"));
}

TEST(JsonSchema, RefusesOtherKeywordsByName) {
  const absl::Status status =
      check_schema(parse_json(R"({"properties": {"a": {"pattern": "x+"}}})"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("$.a: the keyword 'pattern'"));
  EXPECT_FALSE(check_schema(parse_json(R"({"type": "text"})")).ok());
  EXPECT_FALSE(check_schema(parse_json(R"({"minimum": "1"})")).ok());
}

}  // namespace
}  // namespace tessera::load
