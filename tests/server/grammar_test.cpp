#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "kernels/ops/sampling.h"
#include "server/base/memory_guard.h"
#include "server/base/thread_time.h"
#include "server/grammar/grammar_store.h"
#include "server/grammar/make_spec.h"
#include "server/grammar/schema.h"
#include "tests/server/fake_grammars.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Kind = GrammarSpec::Kind;

// ---- schemas

absl::Status prepared(std::string_view schema) {
  return prepare_schema(nlohmann::ordered_json::parse(schema)).status();
}

struct BadSchema {
  const char* schema;
  const char* place;  // that the message names
};

class RefusedSchema : public testing::TestWithParam<BadSchema> {};

TEST_P(RefusedSchema, NamesTheKeyword) {
  const absl::Status status = prepared(GetParam().schema);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << GetParam().schema;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().place)) << GetParam().schema;
}

INSTANTIATE_TEST_SUITE_P(
    Keywords, RefusedSchema,
    testing::Values(
        BadSchema{R"(5)", "$ is neither"}, BadSchema{R"(false)", "$ allows no value"},
        BadSchema{R"({"not":{}})", "$.not"}, BadSchema{R"({"if":{},"then":{}})", "$.if"},
        BadSchema{R"({"type":"array","contains":{}})", "$.contains"},
        BadSchema{R"({"type":"array","uniqueItems":true})", "$.uniqueItems"},
        BadSchema{R"({"type":"object","patternProperties":{}})", "$.patternProperties"},
        BadSchema{R"({"type":"object","properties":{"a":{"dependentRequired":{}}}})",
                  "$.properties.a.dependentRequired"},
        BadSchema{R"({"allOf":[{"type":"null"},{"type":"null"}]})", "$.allOf"},
        BadSchema{R"({"anyOf":[{"type":"null"}],"type":"object"})", "$.type"},
        BadSchema{R"({"anyOf":[{"type":"null"}],"oneOf":[{"type":"null"}]})", "beside anyOf"},
        BadSchema{R"({"$ref":"#/$defs/a","$defs":{"a":true},"minLength":1})", "$.minLength"},
        BadSchema{R"({"minLength":3})", "$.minLength needs a type"},
        BadSchema{R"({"required":["a"]})", "$.required needs a type"},
        BadSchema{R"({"type":"object","required":["a"],"additionalProperties":false})",
                  "$.required names a property that is not allowed"},
        BadSchema{R"({"type":"string","pattern":"[\\S,]"})", "$.pattern has \\S"},
        BadSchema{R"({"type":"object","properties":{"a\"b":true},"additionalProperties":true})",
                  "$.additionalProperties is not supported beside"},
        BadSchema{R"({"type":"text"})", "$.type"}, BadSchema{R"({"type":[]})", "$.type"},
        BadSchema{R"({"enum":[]})", "$.enum"},
        BadSchema{R"({"enum":["a",5],"type":"string"})", "$.enum has a value"},
        BadSchema{R"({"const":"a","type":"integer"})", "$.const has a value"},
        BadSchema{R"({"type":"string","format":5})", "$.format"},
        BadSchema{R"({"type":"string","maxLength":-1})", "$.maxLength"},
        BadSchema{R"({"type":"string","maxLength":1000000})", "$.maxLength"},
        BadSchema{R"({"type":"integer","minimum":"5"})", "$.minimum"},
        BadSchema{R"({"$ref":"http://x/y"})", "$.$ref"},
        BadSchema{R"({"$ref":"#/$defs/none"})", "$.$ref"}));

INSTANTIATE_TEST_SUITE_P(
    Loops, RefusedSchema,
    testing::Values(BadSchema{R"({"$ref":"#"})", "leads back"},
                    BadSchema{R"({"$defs":{"a":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
                              "leads back"},
                    BadSchema{R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"type":"null"}]},
                                           "b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/b"})",
                              "leads back"}));

TEST(Schema, OpensObjectsAndArraysThatNameNothing) {
  EXPECT_EQ(*prepare_schema({{"type", "object"}}),
            R"({"type":"object","additionalProperties":true})");
  EXPECT_EQ(*prepare_schema({{"type", "array"}}), R"({"type":"array","items":true})");
}

TEST(Schema, TakesAFormatWithoutAGrammarForAnAnnotation) {
  const auto text = [](const std::string& schema) {
    return *prepare_schema(nlohmann::ordered_json::parse(schema));
  };
  for (const char* const format : {"int32", "int64", "float", "double", "byte", "password",
                                   "binary", "path", "iban", "idn-email", "regex", ""}) {
    const std::string of = ",\"format\":\"" + std::string(format) + "\"";
    for (const char* const type :
         {R"("type":"integer","minimum":3)", R"("type":"number")",
          R"("type":"string","maxLength":4)", R"("type":["string","null"])", R"("enum":["a"])",
          R"("title":"T")"}) {
      const std::string plain = "{" + std::string(type) + "}";
      EXPECT_EQ(text("{" + std::string(type) + of + "}"), plain);
      EXPECT_EQ(text(R"({"anyOf":[{)" + std::string(type) + of + "}]}"),
                R"({"anyOf":[)" + plain + "]}");
    }
  }
}

// The compiler takes a format for the whole of a text.
TEST(Schema, KeepsAFormatOnlyWhereItIsTheWholeOfAText) {
  const auto kept = [](const char* schema) {
    return nlohmann::ordered_json::parse(*prepare_schema(nlohmann::ordered_json::parse(schema)))
        .contains("format");
  };
  EXPECT_TRUE(kept(R"({"type":"string","format":"date"})"));
  EXPECT_TRUE(kept(R"({"type":["string","null"],"format":"uuid","title":"U"})"));
  EXPECT_FALSE(kept(R"({"type":"string","format":"email","pattern":"^a"})"));
  EXPECT_FALSE(kept(R"({"type":"string","format":"uuid","minLength":36})"));
  EXPECT_FALSE(kept(R"({"type":"integer","format":"date"})"));
  EXPECT_FALSE(kept(R"({"format":"date"})"));
  EXPECT_FALSE(kept(R"({"const":"2026-01-01","format":"date"})"));
}

struct Relaxed {
  const char* schema;
  const char* text;
  const char* left_out;  // begins the first message; empty: there is none
};

class RelaxedSchemas : public testing::TestWithParam<Relaxed> {};

TEST_P(RelaxedSchemas, BindWhatAGrammarCan) {
  const RelaxedSchema relaxed = relax_schema(nlohmann::ordered_json::parse(GetParam().schema));
  EXPECT_EQ(relaxed.text, GetParam().text);
  EXPECT_THAT(relaxed.left_out.empty() ? "" : relaxed.left_out.front(),
              testing::StartsWith(GetParam().left_out));
  EXPECT_EQ(relaxed.left_out.empty(), std::string_view(GetParam().left_out).empty());
  const auto again = prepare_schema(nlohmann::ordered_json::parse(relaxed.text));
  EXPECT_TRUE(again.ok()) << again.status();
}

INSTANTIATE_TEST_SUITE_P(
    Keywords, RelaxedSchemas,
    testing::Values(
        Relaxed{R"({"type":"integer","minimum":1})", R"({"type":"integer","minimum":1})", ""},
        Relaxed{R"({"type":"object","properties":{"n":{"type":"integer","not":{"const":3}}},)"
                R"("required":["n"]})",
                R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]})",
                "$.properties.n.not "},
        Relaxed{R"({"type":"array","items":{"type":"null"},"uniqueItems":true})",
                R"({"type":"array","items":{"type":"null"}})", "$.uniqueItems "},
        Relaxed{R"({"$ref":"#/$defs/a","minLength":1,"$defs":{"a":{"type":"null"}}})",
                R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"null"}}})", "$.minLength "},
        Relaxed{R"({"type":"object","anyOf":[{"type":"null"}],"oneOf":[true]})",
                R"({"anyOf":[{"type":"null"}]})", "$.oneOf "},
        Relaxed{R"({"type":"object","properties":{"a":false},"additionalProperties":false})",
                R"({"type":"object","additionalProperties":true})", "$.properties.a allows no"},
        Relaxed{R"({"type":"object","required":["a"],"additionalProperties":false})",
                R"({"type":"object","additionalProperties":false})", "$.required "},
        Relaxed{R"({"type":"string","pattern":"[\\S,]","maxLength":3})",
                R"({"type":"string","maxLength":3})", "$.pattern "},
        Relaxed{R"({"type":"object","properties":{"a":{"$ref":"http://x/y"}}})",
                R"({"type":"object","properties":{"a":{}}})", "$.properties.a.$ref "},
        Relaxed{R"({"$ref":"#"})", R"({"type":"object","additionalProperties":true})",
                "$.$ref leads back"},
        Relaxed{R"({"anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":true,"b":false}})",
                R"({"type":"object","additionalProperties":true})", "$.$defs.b allows no"}));

// The compiler would ignore the others.
TEST(Schema, MakesRequiredNamesProperties) {
  const auto text = [](const char* schema) {
    return *prepare_schema(nlohmann::ordered_json::parse(schema));
  };
  EXPECT_EQ(text(R"({"type":"object","required":["a"]})"),
            R"({"type":"object","required":["a"],"additionalProperties":true,)"
            R"("properties":{"a":true}})");
  EXPECT_EQ(text(R"({"type":"object","properties":{"a":{"type":"null"}},"required":["a","b"],)"
                 R"("additionalProperties":{"type":"integer"}})"),
            R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"integer"}},)"
            R"("required":["a","b"],"additionalProperties":{"type":"integer"}})");
  nlohmann::ordered_json large = {{"type", "object"}};
  large["additionalProperties"] = {{"const", std::string(20'000, 'a')}};
  large["required"] = {"a", "b", "c", "d", "e", "f", "g"};
  EXPECT_THAT(std::string(prepare_schema(large).status().message()), HasSubstr("names too much"));
}

// The white space of ECMA-262 is larger than that of the compiler.
TEST(Schema, LeavesAllWhiteSpaceOutWhereAPatternDoes) {
  const auto pattern = [](const char* of) {
    const nlohmann::ordered_json schema = {{"type", "string"}, {"pattern", of}};
    return nlohmann::ordered_json::parse(*prepare_schema(schema)).at("pattern").get<std::string>();
  };
  const std::string wide = "\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff";
  EXPECT_EQ(pattern(R"(^\S+@\\S$)"), "^[^\\s" + wide + R"(]+@\\S$)");
  EXPECT_EQ(pattern(R"([^\s,]\s[\s]\])"), "[^\\s" + wide + R"(,]\s[\s]\])");
}

TEST(Schema, TakesWhatPydanticWrites) {
  EXPECT_TRUE(prepared(R"({"$defs":{"Step":{"properties":{"text":{"title":"Text","type":"string"},
      "next":{"anyOf":[{"$ref":"#/$defs/Step"},{"type":"null"}],"default":null}},
      "required":["text"],"title":"Step","type":"object"}},"properties":{"steps":{"items":
      {"$ref":"#/$defs/Step"},"title":"Steps","type":"array"},"kind":{"enum":["a","b"],
      "type":"string"}},"required":["steps","kind"],"title":"Plan","type":"object"})")
                  .ok());
}

TEST(Schema, IsBoundedInDepthAndParts) {
  nlohmann::ordered_json deep = {{"type", "null"}};
  for (int i = 0; i <= kMaxSchemaDepth; ++i) {
    deep = {{"type", "array"}, {"items", deep}};
  }
  EXPECT_THAT(std::string(prepare_schema(deep).status().message()), HasSubstr("levels deep"));
  nlohmann::ordered_json wide = {{"enum", nlohmann::ordered_json::array()}};
  for (int i = 0; i <= kMaxSchemaNodes; ++i) {
    wide["enum"].push_back(i);
  }
  EXPECT_THAT(std::string(prepare_schema(wide).status().message()), HasSubstr("too many values"));
  // 2^40 paths of references, in 40 definitions
  std::string doubled;
  for (int i = 0; i < 40; ++i) {
    const std::string next = R"({"$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"}";
    doubled += "\"d" + std::to_string(i) + R"(":{"anyOf":[)" + next + "," + next + "]},";
  }
  EXPECT_TRUE(
      prepared(R"({"$ref":"#/$defs/d0","$defs":{)" + doubled + R"("d40":{"type":"null"}}})").ok());
}

TEST(Schema, IsBoundedInItsPatternsTogether) {
  const auto with_patterns = [](int count, const std::string& pattern) {
    nlohmann::ordered_json schema = {{"type", "object"}};
    for (int i = 0; i < count; ++i) {
      schema["properties"]["p" + std::to_string(i)] = {{"type", "string"}, {"pattern", pattern}};
    }
    return std::string(prepare_schema(schema).status().message());
  };
  EXPECT_EQ(with_patterns(50, "^[a-z]{1,99}$"), "");
  EXPECT_THAT(with_patterns(500, "^[a-z]{1,99}$"), HasSubstr("written out"));
  EXPECT_THAT(with_patterns(1, "(([a-z]{1,30}){1,30}){1,30}"),
              HasSubstr("$.properties.p0.pattern"));
  EXPECT_THAT(with_patterns(1, std::string(40, '(')), HasSubstr("brackets"));
}

TEST(Notation, IsBoundedInBytesBracketsAndRepeats) {
  const auto message = [](Kind kind, const std::string& text) {
    return std::string(notation_spec(kind, text, "f").status().message());
  };
  EXPECT_THAT(message(Kind::regex, ""), HasSubstr("bytes"));
  EXPECT_THAT(message(Kind::regex, std::string(5000, 'a')), HasSubstr("bytes"));
  EXPECT_THAT(message(Kind::gbnf, std::string(40, '(')), HasSubstr("nested"));
  EXPECT_THAT(message(Kind::regex, "(.{1,1000}){1,11}"), HasSubstr("repeats are written out"));
  EXPECT_THAT(message(Kind::gbnf, "root ::= ([a-z]{101}){100}"), HasSubstr("written out"));
  EXPECT_THAT(message(Kind::structural_tag, R"({"format":{"pattern":"(a{101}){100}"}})"),
              HasSubstr("written out"));
  EXPECT_EQ(message(Kind::structural_tag, R"({"format":{"maxLength":99999}})"), "");
  EXPECT_EQ(message(Kind::regex, R"(\([({][a-z]{2,5}\))"), "");
}

// ---- the store

using Result = absl::StatusOr<GrammarStore::Grammar>;

std::future<Result> get(GrammarStore& store, const std::string& text,
                        const GrammarClient& client = {}) {
  auto promise = std::make_shared<std::promise<Result>>();
  store.get(client, {Kind::regex, text}, [promise](Result result) {
    promise->set_value(std::move(result));  // an answered waiter holds no grammar
  });
  return promise->get_future();
}

TEST(GrammarStore, KeepsWhatItCompiled) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>());
  const Result first = get(store, "a").get();
  ASSERT_TRUE(first.ok());
  std::future<Result> again = get(store, "a");
  EXPECT_EQ(again.wait_for(0s), std::future_status::ready) << "answered at once";
  EXPECT_EQ(*again.get(), *first);
  EXPECT_NE(*get(store, "b").get(), *first);
}

TEST(GrammarStore, CompilesOnceForAllThatWait) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>());
  std::future<Result> first = get(store, "slow");
  std::future<Result> second = get(store, "slow");
  EXPECT_EQ(*first.get(), *second.get());
}

TEST(GrammarStore, DropsWhatWasUsedLongestAgo) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>(), {.grammar_bytes = 20'480});
  const Result a = get(store, "a").get();
  EXPECT_TRUE(get(store, "b").get().ok());
  EXPECT_EQ(*get(store, "a").get(), *a);
  EXPECT_TRUE(get(store, "c").get().ok()) << "instead of b";
  EXPECT_EQ(get(store, "a").wait_for(0s), std::future_status::ready);
  EXPECT_EQ(*get(store, "a").get(), *a);
}

TEST(GrammarStore, TellsWhyASpecIsRefused) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>());
  EXPECT_EQ(get(store, "bad").get().status().message(), "is bad");
  GrammarStore none(nullptr);
  EXPECT_EQ(get(none, "a").get().status().code(), absl::StatusCode::kUnimplemented);
}

TEST(GrammarStore, AnswersThoseWhoHaveWaitedTooLong) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>(), {.threads = 1, .patience = 50ms});
  std::future<Result> running = get(store, "slow1");
  std::this_thread::sleep_for(20ms);
  std::future<Result> behind = get(store, "slow2");
  EXPECT_EQ(running.get().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(behind.get().status().code(), absl::StatusCode::kResourceExhausted);
  std::this_thread::sleep_for(350ms);
  EXPECT_TRUE(get(store, "a").get().ok()) << "the thread has ended the first";
}

TEST(GrammarStore, BoundsWhatWaits) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>(),
                     {.threads = 1, .queue_bytes = 10 << 10});
  std::vector<std::future<Result>> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(get(store, "slow" + std::to_string(i)));
  }
  int refused = 0;
  for (std::future<Result>& one : waiting) {
    refused += one.get().status().code() == absl::StatusCode::kResourceExhausted ? 1 : 0;
  }
  EXPECT_GT(refused, 3);
  EXPECT_LT(refused, 8);
}

GrammarClient tenant(const std::string& name) {
  return {.name = name, .tenant = true};
}

TEST(GrammarStore, TakesNoMoreMemoryThanItCounts) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>());
  const std::string text(1 << 20, 'a');
  EXPECT_TRUE(get(store, text).get().ok());
  const int64_t before = anonymous_memory();
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(get(store, text + std::to_string(i)).get().ok());
  }
  EXPECT_LT(anonymous_memory() - before, 16 << 20) << "the texts have 100 MiB";
  EXPECT_GE(store.bytes(), 101'000);
}

TEST(GrammarStore, FindsALongSpecAmongMany) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>());
  const std::string text(60'000, 'a');
  for (int i = 0; i < 1000; ++i) {
    get(store, text + std::to_string(i)).get().IgnoreError();
  }
  const int64_t before = thread_nanoseconds();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(get(store, text + std::to_string(i)).wait_for(0s), std::future_status::ready);
  }
  EXPECT_LT(thread_nanoseconds() - before, 40'000'000) << "1,000 comparisons of 60 KB take 4 ms";
}

TEST(GrammarStore, LeavesOthersTheirGrammarsWhenOneClientFillsIt) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>(), {.grammar_bytes = 100'000});
  EXPECT_TRUE(get(store, "mine", tenant("light")).get().ok());
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(get(store, std::to_string(i), tenant("heavy")).get().ok()) << i;
  }
  EXPECT_LE(store.bytes(), 100'000);
  EXPECT_EQ(get(store, "mine", tenant("light")).wait_for(0s), std::future_status::ready);
}

TEST(GrammarStore, CountsGrammarsInUseAndRefusesTheirClientAlone) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>(), {.grammar_bytes = 100'000});
  std::vector<Result> used;
  for (int i = 0; i < 50; ++i) {
    used.push_back(get(store, std::to_string(i), tenant("heavy")).get());
  }
  EXPECT_TRUE(used[5].ok());
  EXPECT_EQ(used[49].status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(used[49].status().message()), HasSubstr("leave no memory"));
  EXPECT_LE(store.bytes(), 100'000);
  EXPECT_TRUE(get(store, "mine", tenant("light")).get().ok());
  used.clear();
  EXPECT_TRUE(get(store, "49", tenant("heavy")).get().ok());
}

TEST(GrammarStore, RefusesAGrammarThatTakesMoreThanAClientMayHave) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>(), {.grammar_bytes = 8'000});
  const Result result = get(store, "a").get();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("at most 4000"));
}

TEST(GrammarStore, ShrinksToNothing) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>());
  const Result used = get(store, "used").get();
  for (int i = 0; i < 500; ++i) {
    get(store, std::to_string(i)).get().IgnoreError();
  }
  const int64_t before = store.bytes();
  store.shrink();
  EXPECT_LT(store.bytes(), before * 6 / 10);
  EXPECT_GT(store.bytes(), before * 4 / 10);
  store.shrink();
  store.shrink();
  // A thread may hold the grammar that it has just handed out.
  EXPECT_LT(store.bytes(), 26'000) << "the one in use, and at most a few others";
  EXPECT_GT(store.bytes(), 0);
}

TEST(GrammarStore, CompilesOneClientsSpecBesideALongQueueOfAnother) {
  GrammarStore store(std::make_unique<FakeGrammarCompiler>());
  std::vector<std::future<Result>> queue;
  for (int i = 0; i < 8; ++i) {
    queue.push_back(get(store, "slow" + std::to_string(i), tenant("heavy")));
  }
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(get(store, "mine", tenant("light")).get().ok());
  EXPECT_EQ(queue.front().wait_for(0s), std::future_status::timeout) << "not behind the first";
}

TEST(GrammarStore, AnswersAllWhenItEnds) {
  std::future<Result> waiting;
  {
    GrammarStore store(std::make_unique<FakeGrammarCompiler>(), {.threads = 1});
    get(store, "slow1");
    std::this_thread::sleep_for(20ms);
    waiting = get(store, "slow2");
  }
  EXPECT_EQ(waiting.get().status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tessera
