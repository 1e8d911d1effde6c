#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/base/error.h"
#include "server/openai/request.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

CompletionRequest completion(const std::string& fields) {
  const auto request = parse_completion_request(R"({"prompt":"hi",)" + fields + "}");
  EXPECT_TRUE(request.ok()) << request.status();
  return request.value_or(CompletionRequest());
}

CompletionRequest chat(const std::string& fields) {
  const auto request =
      parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
  EXPECT_TRUE(request.ok()) << request.status();
  return request.value_or(CompletionRequest());
}

// Expected field and message of an error.
struct Refusal {
  std::string param;
  std::string message;
};
Refusal refusal_of(const absl::Status& status) {
  EXPECT_EQ(http_status(status), 400) << status;
  const json error = json::parse(print_error(status)).at("error");
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  return {error.at("param").is_string() ? error.at("param").get<std::string>() : "",
          error.at("message").get<std::string>()};
}

TEST(CompletionRequest, HasOpenAisDefaults) {
  const auto request = parse_completion_request(R"({"prompt":"hi"})");
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(request->chat);
  EXPECT_EQ(std::get<std::string>(request->prompts.at(0)), "hi");
  EXPECT_EQ(request->each.max_tokens, 16);
  EXPECT_EQ(request->each.sampling.temperature, 1);
  EXPECT_EQ(request->each.sampling.top_p, 1);
  EXPECT_EQ(request->each.sampling.top_k, 0);
  EXPECT_EQ(request->n, 1);
  EXPECT_EQ(request->best_of, 1);
  EXPECT_FALSE(request->each.echo);
  EXPECT_FALSE(request->each.seed.has_value());
  EXPECT_FALSE(request->each.deterministic);
  EXPECT_FALSE(request->stream);
  EXPECT_FALSE(request->logprobs.has_value());
  EXPECT_FALSE(request->each.sampling.prompt_logprobs.has_value());
  EXPECT_TRUE(request->each.prompt_options.add_bos);
  EXPECT_TRUE(request->each.prompt_options.parse_special);
}

TEST(CompletionRequest, ReadsEverySamplingField) {
  const SamplingParams s = completion(R"("temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,
      "repetition_penalty":1.1,"presence_penalty":-0.5,"frequency_penalty":2,"min_tokens":3,
      "logit_bias":{"17":-100,"4":1.5},"logprobs":2)")
                               .each.sampling;
  EXPECT_FLOAT_EQ(s.temperature, 0.5f);
  EXPECT_FLOAT_EQ(s.top_p, 0.9f);
  EXPECT_EQ(s.top_k, 40);
  EXPECT_FLOAT_EQ(s.min_p, 0.1f);
  EXPECT_FLOAT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_FLOAT_EQ(s.presence_penalty, -0.5f);
  EXPECT_FLOAT_EQ(s.frequency_penalty, 2);
  EXPECT_EQ(s.min_tokens, 3);
  ASSERT_EQ(s.logit_bias.size(), 2u);
  EXPECT_EQ(s.top_logprobs, 2);
}

TEST(CompletionRequest, ReadsTheOtherFields) {
  const CompletionRequest r = completion(R"("max_tokens":7,"stop":["a","b"],"seed":-3,
      "stop_token_ids":[1,2],"ignore_eos":true,"skip_special_tokens":false,"priority":-2,"n":2,
      "stream":true,"stream_options":{"include_usage":true},"model":"m","user":"u",
      "add_special_tokens":false,"deterministic":true,"request_id":"r-1",
      "return_tokens_as_token_ids":true)");
  EXPECT_EQ(r.each.max_tokens, 7);
  EXPECT_THAT(r.each.stop, ElementsAre("a", "b"));
  EXPECT_THAT(r.each.stop_ids, ElementsAre(1, 2));
  EXPECT_TRUE(r.each.ignore_eos);
  EXPECT_TRUE(r.each.keep_special);
  EXPECT_EQ(r.each.priority, -2);
  EXPECT_EQ(r.each.seed, static_cast<uint64_t>(-3));
  EXPECT_TRUE(r.each.deterministic);
  EXPECT_EQ(r.request_id, "r-1");
  EXPECT_TRUE(r.token_ids_as_text);
  EXPECT_EQ(r.n, 2);
  EXPECT_TRUE(r.stream);
  EXPECT_TRUE(r.include_usage);
  EXPECT_EQ(r.model, "m");
  EXPECT_FALSE(r.each.prompt_options.add_bos);
}

TEST(CompletionRequest, AcceptsWhatClientsSendInPassing) {
  const CompletionRequest r = completion(R"("stop":"x","top_k":-1,"max_tokens":5.0,"seed":null,
      "temperature":null,"unheard_of":null,"response_format":{"type":"text"},"tools":[],
      "tool_choice":"auto","echo":false,"best_of":1,"logprobs":null,"suffix":"","store":false,
      "service_tier":"auto","prompt_cache_key":"k","safety_identifier":"s","metadata":{},
      "parallel_tool_calls":true,"cache_prompt":true,"modalities":["text"],"cache_salt":"x",
      "spaces_between_special_tokens":true,"stream_options":null)");
  EXPECT_THAT(r.each.stop, ElementsAre("x"));
  EXPECT_EQ(r.each.sampling.top_k, 0);
  EXPECT_EQ(r.each.max_tokens, 5);
}

TEST(CompletionRequest, ReadsWhatIsAskedOfThePrefixCache) {
  const CompletionRequest plain = completion(R"("top_k":-1)");
  EXPECT_TRUE(plain.each.cache.use);
  EXPECT_FALSE(plain.each.cache.pin);
  EXPECT_EQ(plain.each.cache_accept, std::nullopt);
  const CompletionRequest r = completion(
      R"("cache_salt":"x","cache_prompt":false,"cache":{"pin":true,"ttl":60,"accept":"s50-k4v4"})");
  EXPECT_EQ(r.each.cache_salt, "x");
  EXPECT_FALSE(r.each.cache.use);
  EXPECT_TRUE(r.each.cache.pin);
  EXPECT_EQ(r.each.cache.ttl, std::chrono::seconds(60));
  EXPECT_EQ(r.each.cache_accept, kKvS50K4V4);
}

TEST(CompletionRequest, ReadsHintsForThePrefixCache) {
  const CompletionRequest r =
      completion(R"("cache":{"retain":60,"demote":true,"release":true,"prefetch":true})");
  EXPECT_TRUE(r.each.cache.pin);
  EXPECT_EQ(r.each.cache.ttl, std::chrono::seconds(60));
  EXPECT_TRUE(r.each.cache.demote);
  EXPECT_TRUE(r.each.cache.release);
  EXPECT_TRUE(r.each.cache.prefetch);
  const CompletionRequest plain = completion(R"("cache":{})");
  EXPECT_FALSE(plain.each.cache.demote || plain.each.cache.release || plain.each.cache.prefetch);
}

TEST(CompletionRequest, ReadsHowLongItsPromptStays) {
  using std::chrono::hours;
  using std::chrono::minutes;
  EXPECT_EQ(completion(R"("top_k":-1)").each.retention, std::nullopt);
  EXPECT_EQ(completion(R"("prompt_cache_key":"k")").each.retention, minutes(5));
  EXPECT_EQ(completion(R"("prompt_cache_retention":"in_memory")").each.retention, minutes(5));
  EXPECT_EQ(completion(R"("prompt_cache_retention":"in-memory")").each.retention, minutes(5));
  EXPECT_EQ(completion(R"("prompt_cache_key":"k","prompt_cache_retention":"24h")").each.retention,
            hours(24));
}

TEST(CompletionRequest, ReadsEchoAndWhatIsAskedOfTheEngineForIt) {
  const CompletionRequest scored = completion(R"("echo":true,"logprobs":3,"max_tokens":1)");
  EXPECT_TRUE(scored.each.echo);
  EXPECT_EQ(scored.logprobs, 3);
  EXPECT_EQ(scored.each.sampling.top_logprobs, 3);
  EXPECT_EQ(scored.each.sampling.prompt_logprobs, 3);
  EXPECT_TRUE(scored.each.ignore_eos) << "there is always one token more than the prompt";
  const CompletionRequest echoed = completion(R"("echo":true,"max_tokens":0)");
  EXPECT_EQ(echoed.each.max_tokens, 0);
  EXPECT_FALSE(echoed.each.sampling.prompt_logprobs.has_value());
  EXPECT_FALSE(echoed.each.ignore_eos);
  const CompletionRequest both = completion(R"("echo":true,"logprobs":1,"prompt_logprobs":5)");
  EXPECT_EQ(both.each.sampling.prompt_logprobs, 5);
  EXPECT_EQ(both.logprobs, 1);
  EXPECT_EQ(both.prompt_logprobs, 5);
  const CompletionRequest apart = completion(R"("prompt_logprobs":0)");
  EXPECT_EQ(apart.each.sampling.prompt_logprobs, 0);
  EXPECT_FALSE(apart.each.sampling.top_logprobs.has_value());
}

TEST(CompletionRequest, MakesLogprobsToChooseTheBest) {
  const CompletionRequest best = completion(R"("n":2,"best_of":4)");
  EXPECT_EQ(best.best_of, 4);
  EXPECT_EQ(best.each.sampling.top_logprobs, 0);
  EXPECT_FALSE(best.logprobs.has_value()) << "not to show them";
  EXPECT_EQ(completion(R"("n":3)").best_of, 3);
}

TEST(CompletionRequest, KnowsLlamaServersWordForNoLimit) {
  EXPECT_FALSE(completion(R"("max_tokens":-1)").each.max_tokens.has_value());
  EXPECT_FALSE(chat(R"("max_tokens":-1)").each.max_tokens.has_value());
}

TEST(CompletionRequest, TakesPromptsInEveryShape) {
  const auto prompts = [](const std::string& prompt) {
    return parse_completion_request(R"({"prompt":)" + prompt + "}").value().prompts;
  };
  const auto one = prompts("[1,2]");
  ASSERT_EQ(one.size(), 1u);
  EXPECT_THAT(std::get<std::vector<int32_t>>(one[0]), ElementsAre(1, 2));
  const auto texts = prompts(R"(["a","b"])");
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(texts[1]), "b");
  const auto lists = prompts("[[1],[2,3]]");
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_THAT(std::get<std::vector<int32_t>>(lists[1]), ElementsAre(2, 3));
}

TEST(ChatRequest, ReadsMessagesAsTextAndAsParts) {
  const auto request = parse_chat_request(R"({"messages":[
      {"role":"system","content":"be kind"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& messages = std::get<Conversation>(request->prompts.at(0)).messages;
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[1].content, "a\nb");
  EXPECT_TRUE(request->chat);
  EXPECT_FALSE(request->each.max_tokens.has_value()) << "as long as the context allows";
}

TEST(ChatRequest, TakesAnAnswerAsClientsSendItBack) {
  const auto request =
      parse_chat_request(R"({"messages":[{"role":"user","content":"hi","name":"Ann"},
      {"role":"assistant","content":"ho","refusal":null,"annotations":[],"audio":null,
       "function_call":null,"tool_calls":null,"reasoning_content":"",
       "provider_specific_fields":{"refusal":null}}]})");
  EXPECT_TRUE(request.ok()) << request.status();
}

TEST(ChatRequest, KnowsBothNamesOfMaxTokens) {
  EXPECT_EQ(chat(R"("max_tokens":5)").each.max_tokens, 5);
  EXPECT_EQ(chat(R"("max_completion_tokens":6)").each.max_tokens, 6);
  EXPECT_EQ(chat(R"("max_tokens":5,"max_completion_tokens":6)").each.max_tokens, 6);
}

TEST(ChatRequest, ReadsLogprobs) {
  EXPECT_EQ(chat(R"("logprobs":true)").each.sampling.top_logprobs, 0);
  EXPECT_EQ(chat(R"("logprobs":true,"top_logprobs":3)").each.sampling.top_logprobs, 3);
  EXPECT_FALSE(chat(R"("logprobs":false,"top_logprobs":0)").logprobs.has_value());
}

struct BadField {
  const char* fields;
  const char* param;
};
void PrintTo(const BadField& bad, std::ostream* out) {
  *out << bad.fields;
}

class RefusedByBoth : public testing::TestWithParam<BadField> {};

TEST_P(RefusedByBoth, NamesTheField) {
  const std::string fields = GetParam().fields;
  const Refusal completion =
      refusal_of(parse_completion_request(R"({"prompt":"hi",)" + fields + "}").status());
  EXPECT_EQ(completion.param, GetParam().param);
  EXPECT_THAT(completion.message, HasSubstr(GetParam().param));
  const Refusal chat = refusal_of(
      parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}")
          .status());
  EXPECT_EQ(chat.param, GetParam().param);
}

INSTANTIATE_TEST_SUITE_P(
    TypesAndRanges, RefusedByBoth,
    testing::Values(
        BadField{R"("model":5)", "model"}, BadField{R"("max_tokens":-2)", "max_tokens"},
        BadField{R"("max_tokens":1.5)", "max_tokens"},
        BadField{R"("max_tokens":"9")", "max_tokens"},
        BadField{R"("max_tokens":3000000000)", "max_tokens"},
        BadField{R"("max_tokens":99999999999999999999)", "max_tokens"},
        BadField{R"("temperature":-0.1)", "temperature"},
        BadField{R"("temperature":"hot")", "temperature"},
        BadField{R"("temperature":true)", "temperature"},
        BadField{R"("temperature":1e30)", "temperature"}, BadField{R"("top_p":0)", "top_p"},
        BadField{R"("top_p":1.01)", "top_p"}, BadField{R"("top_k":-2)", "top_k"},
        BadField{R"("min_p":-0.1)", "min_p"},
        BadField{R"("repetition_penalty":0)", "repetition_penalty"},
        BadField{R"("presence_penalty":2.1)", "presence_penalty"},
        BadField{R"("frequency_penalty":-2.1)", "frequency_penalty"},
        BadField{R"("min_tokens":-1)", "min_tokens"}, BadField{R"("seed":1.5)", "seed"},
        BadField{R"("seed":"x")", "seed"}, BadField{R"("stop":5)", "stop"},
        BadField{R"("stop":["a",5])", "stop"}, BadField{R"("stop":"")", "stop"},
        BadField{R"("stop_token_ids":"x")", "stop_token_ids"},
        BadField{R"("stop_token_ids":[5000000000])", "stop_token_ids"},
        BadField{R"("ignore_eos":1)", "ignore_eos"}, BadField{R"("stream":"yes")", "stream"},
        BadField{R"("stream_options":{})", "stream_options"},
        BadField{R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens"},
        BadField{R"("typical_p":0)", "typical_p"}, BadField{R"("dry_base":0.5)", "dry_base"},
        BadField{R"("bad_words":[1])", "bad_words"},
        BadField{R"("allowed_token_ids":"a")", "allowed_token_ids"},
        BadField{R"("parse_special":1)", "parse_special"},
        BadField{R"("stream":true,"stream_options":5)", "stream_options"},
        BadField{R"("stream":true,"stream_options":{"include_usage":1})",
                 "stream_options.include_usage"},
        BadField{R"("n":0)", "n"}, BadField{R"("n":129)", "n"}, BadField{R"("user":5)", "user"},
        BadField{R"("priority":"high")", "priority"}, BadField{R"("logit_bias":[1])", "logit_bias"},
        BadField{R"("logit_bias":{"x":1})", "logit_bias"},
        BadField{R"("logit_bias":{"5":101})", "logit_bias.5"},
        BadField{R"("logprobs":"all")", "logprobs"},
        BadField{R"("deterministic":1)", "deterministic"},
        BadField{R"("prompt_logprobs":-1)", "prompt_logprobs"},
        BadField{R"("prompt_logprobs":21)", "prompt_logprobs"},
        BadField{R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs"},
        BadField{R"("request_id":"a b")", "request_id"},
        BadField{R"("stream":true,"stream_options":{"include_usages":true})",
                 "stream_options.include_usages"},
        BadField{R"("stream":true,"stream_options":{"include_obfuscation":true})",
                 "stream_options.include_obfuscation"},
        BadField{R"("temprature":0.5)", "temprature"}, BadField{R"("":0)", ""}));

INSTANTIATE_TEST_SUITE_P(
    Unsupported, RefusedByBoth,
    testing::Values(
        BadField{R"("tool_choice":"required")", "tool_choice"},
        BadField{R"("guided_decoding_backend":"outlines")", "guided_decoding_backend"},
        BadField{R"("structural_tag":"x")", "structural_tag"},
        BadField{R"("store":"yes")", "store"}, BadField{R"("metadata":"a")", "metadata"},
        BadField{R"("service_tier":1)", "service_tier"},
        BadField{R"("verbosity":"loud")", "verbosity"},
        BadField{R"("prompt_cache_retention":24)", "prompt_cache_retention"},
        BadField{R"("prompt_cache_retention":"48h")", "prompt_cache_retention"},
        BadField{R"("prompt_cache_key":5)", "prompt_cache_key"},
        BadField{R"("vllm_xargs":{"a":1})", "vllm_xargs"},
        BadField{R"("kv_transfer_params":{"a":1})", "kv_transfer_params"},
        BadField{R"("n_predict":5)", "n_predict"},
        BadField{R"("prompt_embeds":"AAAA")", "prompt_embeds"},
        BadField{R"("use_beam_search":true)", "use_beam_search"},
        BadField{R"("length_penalty":0.5)", "length_penalty"},
        BadField{R"("logits_processors":["x"])", "logits_processors"},
        BadField{R"("modalities":["text","audio"])", "modalities"},
        BadField{R"("audio":{"voice":"x"})", "audio"},
        BadField{R"("prediction":"x")", "prediction"}, BadField{R"("documents":[{}])", "documents"},
        BadField{R"("chat_template":"x")", "chat_template"},
        BadField{R"("continue_final_message":true)", "continue_final_message"},
        BadField{R"("cache":5)", "cache"}, BadField{R"("cache":{"ttl":0})", "cache.ttl"},
        BadField{R"("cache":{"ttl":100000})", "cache.ttl"},
        BadField{R"("cache":{"pin":"yes"})", "cache.pin"},
        BadField{R"("cache":{"accept":"k3v3"})", "cache.accept"},
        BadField{R"("cache":{"key":"x"})", "cache.key"},
        BadField{R"("cache":{"retain":0})", "cache.retain"},
        BadField{R"("cache":{"retain":5,"pin":true})", "cache.retain"},
        BadField{R"("cache":{"retain":5,"ttl":9})", "cache.retain"},
        BadField{R"("cache":{"demote":1})", "cache.demote"},
        BadField{R"("cache":{"release":"yes"})", "cache.release"},
        BadField{R"("cache":{"prefetch":1})", "cache.prefetch"},
        BadField{R"("cache_salt":5)", "cache_salt"},
        BadField{R"("thinking_token_budget":5)", "thinking_token_budget"}));

INSTANTIATE_TEST_SUITE_P(
    Grammars, RefusedByBoth,
    testing::Values(BadField{R"("response_format":5)", "response_format.type"},
                    BadField{R"("response_format":{"type":"xml"})", "response_format.type"},
                    BadField{R"("response_format":{"type":"json_schema"})",
                             "response_format.json_schema.schema"},
                    BadField{R"("guided_json":{"not":{}})", "guided_json"},
                    BadField{R"("guided_json":"{")", "guided_json"},
                    BadField{R"("guided_choice":[5])", "guided_choice"},
                    BadField{R"("guided_choice":["a",""])", "guided_choice"},
                    BadField{R"("guided_regex":5)", "guided_regex"},
                    BadField{R"("structured_outputs":5)", "structured_outputs"},
                    BadField{R"("structured_outputs":{"lark":"a"})", "structured_outputs.lark"},
                    BadField{R"("structured_outputs":{"regex":"a","choice":["b"]})",
                             "structured_outputs.choice"},
                    BadField{R"("grammar":5)", "grammar"},
                    BadField{R"("grammar":"root ::= \"a\"","guided_regex":"a")", "grammar"},
                    BadField{R"("json_schema":{"type":"text"})", "json_schema"},
                    BadField{R"("guided_regex":"a","ignore_eos":true)", "ignore_eos"}));

class RefusedPrompt : public testing::TestWithParam<BadField> {};

TEST_P(RefusedPrompt, NamesThePlace) {
  const Refusal refusal = refusal_of(parse_completion_request(GetParam().fields).status());
  EXPECT_EQ(refusal.param, GetParam().param);
}

INSTANTIATE_TEST_SUITE_P(
    Completions, RefusedPrompt,
    testing::Values(
        BadField{"{}", "prompt"}, BadField{R"({"prompt":null})", "prompt"},
        BadField{R"({"prompt":5})", "prompt"}, BadField{R"({"prompt":[]})", "prompt"},
        BadField{R"({"prompt":{}})", "prompt"}, BadField{R"({"prompt":[1,"a"]})", "prompt"},
        BadField{R"({"prompt":[-1]})", "prompt"}, BadField{R"({"prompt":[4294967296]})", "prompt"},
        BadField{R"({"prompt":[1.5]})", "prompt"}, BadField{R"({"prompt":["a",5]})", "prompt[1]"},
        BadField{R"({"prompt":[[1],[]]})", "prompt[1]"},
        BadField{R"({"prompt":[[1],["a"]]})", "prompt[1]"},
        BadField{R"({"prompt":"a","logprobs":21})", "logprobs"},
        BadField{R"({"prompt":"a","n":2,"best_of":1})", "best_of"},
        BadField{R"({"prompt":"a","best_of":2,"stream":true})", "best_of"},
        BadField{R"({"prompt":"a","messages":[]})", "messages"}));

class RefusedChat : public testing::TestWithParam<BadField> {};

TEST_P(RefusedChat, NamesThePlace) {
  const Refusal refusal = refusal_of(parse_chat_request(GetParam().fields).status());
  EXPECT_EQ(refusal.param, GetParam().param);
}

INSTANTIATE_TEST_SUITE_P(
    Messages, RefusedChat,
    testing::Values(
        BadField{"{}", "messages"}, BadField{R"({"messages":[]})", "messages"},
        BadField{R"({"messages":"hi"})", "messages"},
        BadField{R"({"messages":["hi"]})", "messages[0]"},
        BadField{R"({"messages":[{"content":"x"}]})", "messages[0].role"},
        BadField{R"({"messages":[{"role":5,"content":"x"}]})", "messages[0].role"},
        BadField{R"({"messages":[{"role":"user"}]})", "messages[0].content"},
        BadField{R"({"messages":[{"role":"user","content":5}]})", "messages[0].content"},
        BadField{R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content[0]"},
        BadField{
            R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
            "messages[0].content[0]"},
        BadField{R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
                 "messages[0].content[0].text"},
        BadField{R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})",
                 "messages[0].tool_calls[0].function"},
        BadField{R"({"messages":[{"role":"user","content":[{"type":"text","text":"a","b":1}]}]})",
                 "messages[0].content[0].b"},
        BadField{R"({"messages":[{"role":"user","content":"x","colour":"red"}]})",
                 "messages[0].colour"},
        BadField{R"({"messages":[{"role":"user","content":"x"}],"echo":true})", "echo"},
        BadField{R"({"messages":[{"role":"user","content":"x"}],"best_of":2})", "best_of"},
        BadField{R"({"messages":[{"role":"user","content":"x"}],"max_tokens":0})", "max_tokens"},
        BadField{R"({"messages":[{"role":"user","content":"x"}],"add_special_tokens":true})",
                 "add_special_tokens"},
        BadField{R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":1})",
                 "top_logprobs"},
        BadField{R"({"messages":[{"role":"user","content":"x"}],"logprobs":3})", "logprobs"},
        BadField{R"({"messages":[{"role":"user","content":"x"}],"max_completion_tokens":0})",
                 "max_completion_tokens"}));

TEST(RequestBody, MustBeAJsonObjectInUtf8) {
  const char* const bodies[] = {"",
                                "{",
                                "[1]",
                                "5",
                                "nonsense",
                                R"({"prompt":"a"},)",
                                "null",
                                "{\"a\"}",
                                "\xff",
                                "{\"prompt\":\"\xff\xfe\"}",
                                "{\"prompt\":\"\\ud800\"}",
                                R"({"prompt":"a","x":1e999})"};
  for (const char* body : bodies) {
    SCOPED_TRACE(body);
    EXPECT_EQ(http_status(parse_completion_request(body).status()), 400);
    EXPECT_EQ(http_status(parse_chat_request(body).status()), 400);
    EXPECT_EQ(http_status(parse_tokenize_request(body).status()), 400);
    EXPECT_EQ(http_status(parse_detokenize_request(body).status()), 400);
  }
}

TEST(RequestBody, SaysWhereJsonEnds) {
  EXPECT_THAT(parse_completion_request(R"({"prompt": nope})").status().message(),
              HasSubstr("error at byte 13 of 16"));
}

TEST(RequestBody, MayNotBeNestedWithoutEnd) {
  const auto nested = [](int depth) {
    return R"({"prompt":"a","x":)" + std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']') + "}";
  };
  EXPECT_THAT(parse_completion_request(nested(63)).status().message(),
              testing::Not(HasSubstr("nested")));
  EXPECT_THAT(parse_completion_request(nested(64)).status().message(), HasSubstr("nested"));
  EXPECT_FALSE(parse_completion_request(std::string(1 << 20, '[')).ok());
  EXPECT_TRUE(
      parse_completion_request(R"({"prompt":"[[[[\"[[[","user":")" + std::string(100, '{') + "\"}")
          .ok())
      << "brackets in strings are text";
}

TEST(TokenizeRequest, TakesATextOrAChat) {
  const auto text = parse_tokenize_request(R"({"prompt":"a","return_token_strs":true})");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(std::get<std::string>(text->prompt), "a");
  EXPECT_TRUE(text->token_texts);
  const auto messages = parse_tokenize_request(
      R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false})");
  ASSERT_TRUE(messages.ok());
  EXPECT_FALSE(messages->options.add_generation_prompt);
  const auto content = parse_tokenize_request(R"({"content":"x","add_special":true})");
  ASSERT_TRUE(content.ok());
  EXPECT_TRUE(content->options.add_bos);
  EXPECT_TRUE(content->options.parse_special);
  EXPECT_EQ(refusal_of(parse_tokenize_request("{}").status()).param, "prompt");
  EXPECT_EQ(refusal_of(parse_tokenize_request(R"({"prompt":"a","pieces":1})").status()).param,
            "pieces");
  EXPECT_EQ(refusal_of(parse_tokenize_request(R"({"prompt":[1]})").status()).param, "prompt");
}

TEST(DetokenizeRequest, TakesTokens) {
  EXPECT_THAT(parse_detokenize_request(R"({"tokens":[1,2]})")->tokens, ElementsAre(1, 2));
  EXPECT_EQ(refusal_of(parse_detokenize_request("{}").status()).param, "tokens");
  EXPECT_EQ(refusal_of(parse_detokenize_request(R"({"tokens":"x"})").status()).param, "tokens");
}

}  // namespace
}  // namespace tessera
