// Fields of vLLM and llama-server over HTTP: their effect on the engine's request, and on the
// answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "server/http/inflate.h"
#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class HttpFields : public HttpFixture {
 protected:
  // Sends a body, lets the engine write "xyz", and ends the sequence.
  json answer(const std::string& path, const std::string& body, FinishReason reason,
              std::optional<int32_t> stop_token = std::nullopt) {
    HttpClient client(port());
    const std::size_t before = fake.engine->requests();
    client.send(print_post(path, body));
    EXPECT_TRUE(fake.engine->wait_for_requests(before + 1));
    fake.engine->emit(before, "xyz");
    fake.engine->finish(before, reason, absl::OkStatus(), stop_token);
    const HttpClientResponse response = client.read_response();
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }
  json completion(const std::string& fields, FinishReason reason = FinishReason::stop,
                  std::optional<int32_t> stop_token = std::nullopt) {
    return answer("/v1/completions", R"({"prompt":"ab",)" + fields + "}", reason, stop_token);
  }
  void start_with_answers() {
    fake.engine->answer_with([](const EngineRequest&) { return "hzi"; });
    start();
  }
  std::vector<int32_t> submitted(const std::string& body) {
    answer("/v1/completions", body, FinishReason::stop);
    return fake.engine->request(fake.engine->requests() - 1).prompt;
  }
};

using Ids = std::vector<int32_t>;

TEST_F(HttpFields, SpecialTokensOfAPromptAreParsedUnlessToldOtherwise) {
  start();
  EXPECT_EQ(submitted(R"({"prompt":"a<s>"})"), (Ids{256, 'a', 256}));
  EXPECT_EQ(submitted(R"({"prompt":"<s>","parse_special":false})"), (Ids{256, '<', 's', '>'}));
  EXPECT_EQ(submitted(R"({"prompt":"<s>","add_special_tokens":false})"), (Ids{256}));
  HttpClient client(port());
  const auto tokens = [&](const char* body) {
    return json::parse(client.post("/tokenize", body).body).at("tokens");
  };
  EXPECT_EQ(tokens(R"({"prompt":"<s>i","add_special_tokens":false})"),
            tokens(R"({"content":"<s>i"})"));
  EXPECT_EQ(tokens(R"({"prompt":"<s>i","parse_special":false})"),
            tokens(R"({"content":"<s>i","parse_special":false,"add_special":true})"));
}

// -1 asks for a random seed, in any spelling of the number. Other negative numbers are seeds.
TEST_F(HttpFields, ASeedOfMinusOneIsRandomInEveryDialect) {
  start_with_answers();
  HttpClient client(port());
  const std::string chat = R"("max_tokens":2,"messages":[{"role":"user","content":"a"}])";
  RequestId next = 0;
  for (const auto& [path, fields] :
       std::vector<std::pair<std::string, std::string>>{{"/v1/completions", R"("prompt":"a")"},
                                                        {"/v1/chat/completions", chat},
                                                        {"/v1/messages", chat},
                                                        {"/v1/responses", R"("input":"a")"}}) {
    const auto seed_of = [&](const std::string& seed) {
      const auto response = client.post(path, "{" + fields + R"(,"seed":)" + seed + "}");
      EXPECT_EQ(response.status, 200) << response.body;
      return fake.engine->request(next++).sampling.seed;
    };
    EXPECT_NE(seed_of("-1"), seed_of("-1")) << path;
    EXPECT_NE(seed_of("-1.0"), static_cast<uint64_t>(-1)) << path;
    EXPECT_NE(seed_of("null"), seed_of("-1")) << path;
    EXPECT_EQ(seed_of("-2"), static_cast<uint64_t>(-2)) << path;
    EXPECT_EQ(seed_of("0"), 0u) << path;
    EXPECT_EQ(seed_of(R"(-1,"deterministic":true)"), seed_of(R"(-1,"deterministic":true)")) << path;
  }
}

// Clients of Ollama and others send hints that no other server knows.
TEST_F(HttpFields, UnknownOnesAreLeftOutWithAWarningIfTheServerIsLenient) {
  fake.engine->answer_with([](const EngineRequest&) { return "hi"; });
  start({}, {.lenient = true});
  HttpClient client(port());
  const std::string chat = R"("messages":[{"role":"user","content":"a"}],"max_tokens":2)";
  for (const auto& [path, fields] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/completions", R"("prompt":"a")"},
           {"/v1/chat/completions", chat},
           {"/v1/messages", chat},
           {"/v1/responses", R"("input":"a")"},
           {"/v1/embeddings", R"("input":"a")"},
           {"/v1/score", R"("text_1":"a","text_2":"b")"},
           {"/rerank", R"("query":"a","documents":"b")"},
           {"/tokenize", R"("prompt":"a")"}}) {
    const auto with = [&](const std::string& more) {
      return client.post(path, "{" + fields + more);
    };
    const auto lenient = with(R"(,"num_ctx":8192,"options":{"num_ctx":1},"a\r\nb\"":1})");
    EXPECT_EQ(lenient.status, 200) << path << lenient.body;
    const std::string& warning = lenient.headers.at("warning");
    EXPECT_THAT(warning, testing::StartsWith("299 - \"")) << path;
    EXPECT_THAT(warning, HasSubstr("num_ctx is left out: it is not known to this server"));
    EXPECT_THAT(warning, HasSubstr("options is left out")) << path;
    EXPECT_THAT(warning, HasSubstr("a''b' is left out")) << path;
    EXPECT_FALSE(with("}").headers.contains("warning")) << path;
  }
}

TEST_F(HttpFields, AreRefusedByALenientServerTooIfTheyChangeAnAnswer) {
  start({}, {.lenient = true});
  HttpClient client(port());
  for (const auto& [body, param] : std::vector<std::pair<std::string, std::string>>{
           {R"({"messages":[{"role":"user","content":"a","images":["x"]}]})", "messages[0].images"},
           {R"({"messages":[{"role":"user","content":"a"}],"temperature":"x"})", "temperature"},
           {R"({"messages":[{"role":"user","content":"a"}],"audio":{}})", "audio"},
           {R"({"messages":[{"role":"user","content":"a"}],"kv_cache":{"kv_pres":1}})",
            "kv_cache"}}) {
    const auto response = client.post("/v1/chat/completions", body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_THAT(json::parse(response.body).at("error").at("param").get<std::string>(),
                testing::StartsWith(param));
  }
  std::string many = R"({"prompt":"a")";
  for (int i = 0; i < 1000; ++i) {
    many += ",\"" + std::string(200, 'x') + std::to_string(i) + "\":1";
  }
  fake.engine->answer_with([](const EngineRequest&) { return "hi"; });
  EXPECT_LT(client.post("/v1/completions", many + "}").headers.at("warning").size(), 1000u);
}

TEST_F(HttpFields, TruncatedPromptsKeepTheirLastTokensAndTheBos) {
  start();
  EXPECT_EQ(submitted(R"({"prompt":"abcd","truncate_prompt_tokens":3})"), (Ids{256, 'c', 'd'}));
  EXPECT_EQ(submitted(R"({"prompt":[7,8,9],"truncate_prompt_tokens":2})"), (Ids{8, 9}));
  EXPECT_EQ(submitted(R"({"prompt":"ab","truncate_prompt_tokens":9})"), (Ids{256, 'a', 'b'}));
  const std::string longer(100'000, 'a');
  EXPECT_EQ(
      submitted(R"({"max_tokens":100,"truncate_prompt_tokens":-1,"prompt":")" + longer + R"("})")
          .size(),
      100'000u - 100);
  HttpClient client(port());
  EXPECT_THAT(client.post("/v1/completions", R"({"prompt":"a","truncate_prompt_tokens":0})").body,
              HasSubstr("truncate_prompt_tokens must be an integer from 1"));
  const json echo =
      answer("/v1/completions", R"({"prompt":"abcd","truncate_prompt_tokens":3,"echo":true})",
             FinishReason::stop);
  EXPECT_EQ(echo.at("choices").at(0).at("text"), "cdxyz");
}

TEST_F(HttpFields, TokenIdsOfPromptAndAnswerAreReturned) {
  start();
  const json choice = completion(R"("return_token_ids":true)").at("choices").at(0);
  EXPECT_EQ(choice.at("token_ids"), json::parse("[120,121,122]"));
  EXPECT_EQ(choice.at("prompt_token_ids"), json::parse("[256,97,98]"));
  const json chat = answer("/v1/chat/completions",
                           R"({"messages":[{"role":"u","content":"x"}],"return_token_ids":true})",
                           FinishReason::stop);
  EXPECT_EQ(chat.at("choices").at(0).at("token_ids"), json::parse("[120,121,122]"));
  EXPECT_EQ(chat.at("prompt_token_ids"), json(fake.engine->request(1).prompt));
}

// A client that puts the ids of all chunks together has them all, in order.
TEST_F(HttpFields, StreamsHaveTheTokenIdsOfEachChunk) {
  start_with_answers();
  HttpClient client(port());
  const auto events =
      events_of(client
                    .post("/v1/completions",
                          R"({"prompt":"ab","return_token_ids":true,"stream":true,"stop":"zz"})")
                    .body);
  Ids ids;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json choice = json::parse(events[i]).at("choices").at(0);
    EXPECT_EQ(choice.contains("prompt_token_ids"), i == 0);
    for (const json& id : choice.at("token_ids")) {
      ids.push_back(id);
    }
  }
  EXPECT_EQ(ids, (Ids{'h', 'z', 'i'}));
}

TEST_F(HttpFields, AnswersNameTheirEnd) {
  start();
  const auto reason_of = [](const json& body) {
    return body.at("choices").at(0).value("stop_reason", json());
  };
  EXPECT_EQ(reason_of(completion(R"("stop_token_ids":[33])", FinishReason::stop, 33)), 33);
  EXPECT_EQ(reason_of(completion(R"("stop_token_ids":[33])", FinishReason::stop, 257)), json())
      << "the model's own end of sequence";
  EXPECT_EQ(reason_of(completion(R"("max_tokens":3)", FinishReason::length)), json());
  EXPECT_EQ(reason_of(completion(R"("max_tokens":4)", FinishReason::length)), "context_length");
  const json message =
      answer("/v1/messages", R"({"messages":[{"role":"user","content":"x"}],"max_tokens":9})",
             FinishReason::length);
  EXPECT_EQ(message.at("stop_reason"), "model_context_window_exceeded");
}

TEST_F(HttpFields, WhatEndsATextIsPartOfItIfAskedFor) {
  start();
  const auto text_of = [&](const std::string& fields, std::optional<int32_t> stop_token) {
    return completion(fields, FinishReason::stop, stop_token).at("choices").at(0).at("text");
  };
  EXPECT_EQ(text_of(R"("stop":"y")", {}), "x");
  EXPECT_EQ(text_of(R"("stop":"y","include_stop_str_in_output":true)", {}), "xy");
  EXPECT_EQ(text_of(R"("stop_token_ids":[33])", '!'), "xyz");
  EXPECT_EQ(text_of(R"("stop_token_ids":[33],"include_stop_str_in_output":true)", '!'), "xyz!");
}

TEST_F(HttpFields, TheFingerprintIsThatOfTheConfiguration) {
  start();
  const std::string first = completion(R"("seed":1)").at("system_fingerprint");
  EXPECT_EQ(first.size(), 19u) << first;
  EXPECT_EQ(completion(R"("seed":2)").at("system_fingerprint"), first);
}

TEST_F(HttpFields, IncludeUsageFalseAsksForNothing) {
  start();
  completion(R"("stream_options":{"include_usage":false})");
  HttpClient client(port());
  EXPECT_EQ(
      client.post("/v1/completions", R"({"prompt":"a","stream_options":{"include_usage":true}})")
          .status,
      400);
}

TEST_F(HttpFields, WordsBecomeTheirTokens) {
  start();
  completion(R"("bad_words":["hi"],"dry_multiplier":1,"dry_sequence_breakers":["a","b"])");
  const SamplingParams params = fake.engine->request(0).sampling;
  EXPECT_EQ(params.bad_words, (std::vector<Ids>{{'h', 'i'}, {' ', 'h', 'i'}}));
  ASSERT_EQ(params.dry_sequence_breakers.size(), 9u);  // 258 tokens
  EXPECT_EQ(params.dry_sequence_breakers.at('a' / 32), 6u);
  HttpClient client(port());
  EXPECT_THAT(client.post("/v1/completions", R"({"prompt":"a","bad_words":[""]})").body,
              HasSubstr("bad_words must not contain an empty string"));
  EXPECT_THAT(
      client.post("/v1/completions", R"({"prompt":"a","dry_sequence_breakers":["ab"]})").body,
      HasSubstr("no token contains 'ab'"));
  std::string ids = "1";
  for (int i = 0; i < 4096; ++i) {
    ids += ",1";
  }
  EXPECT_THAT(
      client.post("/v1/completions", R"({"prompt":"a","allowed_token_ids":[)" + ids + "]}").body,
      HasSubstr("allowed_token_ids has 4097 ids, at most 4096 are allowed"));
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// A few compressed bytes may stand for megabytes. A job counts the bytes that it may inflate.
TEST(BodyInflater, InflatesNoMoreInAStepThanItIsAllowed) {
  const std::string text(3'000'000, 'a');
  std::string body = gzip(text);
  EXPECT_LT(body.size(), 10'000u);
  const size_t compressed = body.size();
  size_t room = 0;
  BodyInflater inflater(body, 5'000'000, [&](size_t bytes) {
    room = std::max(room, bytes);
    return true;
  });
  size_t allowed = 0;
  for (const size_t bytes : {size_t{1'000}, size_t{100'000}, size_t{0}, size_t{500'000}}) {
    allowed += bytes;
    EXPECT_FALSE(inflater.step(bytes));
    EXPECT_LE(room, compressed + allowed);
  }
  while (!inflater.step(1'000'000)) {
  }
  EXPECT_FALSE(inflater.refusal());
  EXPECT_EQ(body, text);
}

TEST(BodyInflater, StopsAtTheLimitAndWithoutRoom) {
  std::string body = gzip(std::string(100'000, 'a'));
  BodyInflater limited(body, 1'000, [](size_t) { return true; });
  EXPECT_TRUE(limited.step(1'000'000));
  EXPECT_EQ(limited.refusal().value().status, 413);
  BodyInflater poor(body, 1'000'000, [](size_t bytes) { return bytes < 70'000; });
  EXPECT_TRUE(poor.step(1'000'000));
  EXPECT_EQ(poor.refusal().value().status, 503);
}

TEST_F(HttpFields, CompressedBodiesAreReadWithinTheLimit) {
  start({.body_bytes = 100'000});
  const auto post = [&](const std::string& body,
                        std::string_view coding = "Content-Encoding: gzip\r\n") {
    return HttpClient(port()).post("/tokenize", body, coding);
  };
  const std::string packed = gzip(R"({"content":"hi"})");
  EXPECT_EQ(json::parse(post(packed).body).at("tokens"), json::parse("[104,105]"));
  const auto bomb = post(gzip(R"({"content":")" + std::string(10'000'000, 'a') + R"("})"));
  EXPECT_EQ(bomb.status, 413);
  EXPECT_THAT(bomb.body, HasSubstr("longer than the 100000 bytes allowed"));
  const std::string many = "hi" + std::string(90'000, ' ');
  EXPECT_EQ(post(gzip(json{{"content", many}}.dump())).status, 200) << "several jobs";
  EXPECT_EQ(post(packed.substr(0, packed.size() - 9)).status, 400) << "cut off";
  EXPECT_EQ(post(packed + "x").status, 400) << "bytes follow";
  EXPECT_EQ(post(R"({"content":"hi"})").status, 400) << "not compressed";
  EXPECT_EQ(post(packed, "Content-Encoding: br\r\n").status, 415);
  EXPECT_EQ(post(R"({"content":"hi"})", "Content-Encoding: identity\r\n").status, 200);
  EXPECT_EQ(fake.budget.used(), 0u);
}

}  // namespace
}  // namespace tessera
