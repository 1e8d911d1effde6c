// Each case is sent over HTTP and over gRPC to one fake engine. Both must read the same request,
// submit the same to the engine, and answer the same.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/grpc/wire.h"
#include "server/openai/request.h"
#include "tests/server/grpc_fixture.h"
#include "tests/server/http_fixture.h"
#include "tests/server/option_texts.h"

namespace tessera {
namespace {

using nlohmann::json;

// One request in both forms, and the fake model's text.
struct Case {
  const char* name;
  bool chat;
  std::string body;   // members of the HTTP body
  std::string proto;  // text of the protobuf message
  std::string answer = "abc";
};

const std::string kHi = R"("messages":[{"role":"user","content":"hi"}])";
const std::string kHiProto = R"(messages { role: "user" content: "hi" })";
const std::string kTool =
    R"("tools":[{"type":"function","function":{"name":"f","description":"d",
        "parameters":{"type":"object","properties":{"b":{"type":"integer"},"a":{}}},
        "strict":true,"return":{"type":"string"}}}])";
const std::string kToolProto =
    R"(tools { name: "f" description: "d" strict: true returns: "{\"type\":\"string\"}"
        parameters: "{\"type\": \"object\",\"properties\":{\"b\":{\"type\":\"integer\"},\"a\":{}}}" })";
const std::string kCalls =
    "Well. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
const std::string kForced = "{\"name\": \"f\", \"arguments\": {\"b\": 1}}\n</tool_call>";

std::vector<Case> cases() {
  return {
      {"text", false, R"("prompt":"hi")", R"(text: "hi")"},
      {"ids", false, R"("prompt":[5,6],"max_tokens":2)", "tokens { ids: 5 ids: 6 } max_tokens: 2"},
      {"model", false, R"("prompt":"hi","model":"fake")", R"(text: "hi" model: "fake")"},
      {"stop", false, R"("prompt":"hi","stop":["b","z"])", R"(text: "hi" stop: "b" stop: "z")"},
      {"many stops", false,
       R"("prompt":"hi","stop":["0","1","2","3","4","5","6","7","8","9","p","q","r","s","t","u","c"])",
       R"(text: "hi" stop: ["0","1","2","3","4","5","6","7","8","9","p","q","r","s","t","u","c"])"},
      {"n", false, R"("prompt":"hi","n":3)", R"(text: "hi" n: 3)"},
      {"best_of", false, R"("prompt":"hi","n":2,"best_of":4)", R"(text: "hi" n: 2 best_of: 4)"},
      {"echo", false, R"("prompt":"hi","echo":true)", R"(text: "hi" echo: true)"},
      {"echo of ids", false, R"("prompt":[104,105,256],"echo":true,"skip_special_tokens":false)",
       "tokens { ids: 104 ids: 105 ids: 256 } echo: true keep_special_tokens: true"},
      {"no BOS", false, R"("prompt":"hi","add_special_tokens":false)",
       R"(text: "hi" add_special_tokens: false)"},
      {"options", false,
       R"("prompt":"hi","temperature":0.5,"priority":2,"cache_salt":"s","stop_token_ids":[7],
          "kv_cache":{"sinks":4},"logit_bias":{"4":1})",
       R"(text: "hi" sampling { temperature: 0.5 logit_bias { key: 4 value: 1 } } priority: 2
          cache { salt: "s" } stop_token_ids: 7 kv { sinks: 4 })"},
      {"sampling of other servers", false,
       R"("prompt":"hi","typical_p":0.5,"bad_words":["no"],"allowed_token_ids":[104,105],
          "dry_multiplier":0.8,"dry_base":2,"dry_allowed_length":3,"dry_penalty_last_n":64,
          "dry_sequence_breakers":["a"])",
       R"(text: "hi" sampling { typical_p: 0.5 bad_words: "no" allowed_token_ids: [104,105]
          dry_multiplier: 0.8 dry_base: 2 dry_allowed_length: 3 dry_penalty_last_n: 64
          dry_sequence_breakers { texts: "a" } })"},
      {"the default breakers", false, R"("prompt":"hi","dry_multiplier":0.8)",
       R"(text: "hi" sampling { dry_multiplier: 0.8 })"},
      {"a written special token", false, R"("prompt":"<s>hi")",
       R"(text: "<s>hi" parse_special_tokens: true)"},
      {"a stop that is kept", false,
       R"("prompt":"hi","stop":["b"],"include_stop_str_in_output":true)",
       R"(text: "hi" stop: "b" include_stop: true)"},
      {"a truncated prompt", false, R"("prompt":"hello","truncate_prompt_tokens":3,"echo":true)",
       R"(text: "hello" truncate_prompt_tokens: 3 echo: true)"},
      {"json object", false, R"("prompt":"hi","response_format":{"type":"json_object"})",
       R"(text: "hi" grammar { json_object: true })"},
      {"schema", false, R"("prompt":"hi","json_schema":{"type":"integer"})",
       R"(text: "hi" grammar { json_schema: "{\"type\":\"integer\"}" })"},
      {"regex", false, R"("prompt":"hi","guided_regex":"a+")",
       R"(text: "hi" grammar { regex: "a+" })"},
      {"gbnf", false, R"("prompt":"hi","grammar":"root ::= \"a\"")",
       R"(text: "hi" grammar { gbnf: "root ::= \"a\"" })"},
      {"choice", false, R"("prompt":"hi","guided_choice":["a","b"])",
       R"(text: "hi" grammar { choice { texts: "a" texts: "b" } })"},
      {"chat", true, kHi, "chat { " + kHiProto + " }"},
      {"thoughts", true, kHi, "chat { " + kHiProto + " }", "<think>\nHm.\n</think>\n\nYes."},
      {"no thoughts shown", true, kHi + R"(,"include_reasoning":false)",
       "chat { " + kHiProto + " include_reasoning: false }", "<think>\nHm.\n</think>\n\nYes."},
      {"tools", true, kHi + "," + kTool, "chat { " + kHiProto + kToolProto + " }", kCalls},
      {"text that is no call", true, kHi + "," + kTool, "chat { " + kHiProto + kToolProto + " }",
       "<tool_call> no"},
      {"a length", true, kHi + R"(,"max_tokens":40,)" + kTool,
       "max_tokens: 40 chat { " + kHiProto + kToolProto + " }", kCalls},
      {"no call wanted", true, kHi + R"(,"tool_choice":"none",)" + kTool,
       "chat { tool_choice: TOOL_CHOICE_NONE " + kHiProto + kToolProto + " }", kCalls},
      {"a required call", true, kHi + R"(,"tool_choice":"required",)" + kTool,
       "chat { tool_choice: TOOL_CHOICE_REQUIRED " + kHiProto + kToolProto + " }", kForced},
      {"a named call", true,
       kHi + R"(,"tool_choice":{"type":"function","function":{"name":"f"}},)" + kTool,
       R"(chat { tool_choice: TOOL_CHOICE_REQUIRED required_tool: "f" )" + kHiProto + kToolProto +
           " }",
       kForced},
      {"one call", true, kHi + R"(,"parallel_tool_calls":false,)" + kTool,
       "chat { parallel_tool_calls: false " + kHiProto + kToolProto + " }", kCalls},
      {"a schema beside tools", true,
       kHi +
           R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"integer"}}},)" +
           kTool,
       R"(grammar { json_schema: "{\"type\":\"integer\"}" } chat { )" + kHiProto + kToolProto +
           " }",
       "17"},
      {"a history of calls", true,
       R"("messages":[{"role":"user","content":"hi"},
           {"role":"assistant","content":null,"reasoning_content":"Hm.","tool_calls":[
             {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\":1}"}},
             {"id":"c2","type":"function","function":{"name":"f","arguments":""}}]},
           {"role":"tool","tool_call_id":"c1","name":"f","content":"2"}])",
       R"(chat { messages { role: "user" content: "hi" }
           messages { role: "assistant" reasoning: "Hm."
             tool_calls { id: "c1" name: "f" arguments: "{\"b\":1}" }
             tool_calls { id: "c2" name: "f" } }
           messages { role: "tool" tool_call_id: "c1" name: "f" content: "2" } })"},
      {"variables", true,
       kHi + R"(,"reasoning_effort":"none","chat_template_kwargs":{"z":1,"a":[true]})",
       R"(chat { reasoning_effort: "none" template_variables: "{\"z\":1,\"a\":[true]}" )" +
           kHiProto + " }"},
      {"a continued message", true,
       R"("continue_final_message":true,"messages":[{"role":"user","content":"hi"},
           {"role":"assistant","content":"I"}])",
       R"(chat { continue_final_message: true messages { role: "user" content: "hi" }
           messages { role: "assistant" content: "I" } })"},
      {"no turn begun", true, kHi + R"(,"add_generation_prompt":false)",
       "chat { add_generation_prompt: false " + kHiProto + " }"},
  };
}

// A request as the engine got it, without the seed, which each request draws.
struct Submitted {
  std::vector<int32_t> prompt;
  Texts options;
  int32_t max_tokens = 0;
  bool grammar = false;
  std::string kv;

  bool operator==(const Submitted&) const = default;
};

// An answer's sequence.
struct Answer {
  std::string text;
  std::string reasoning;
  std::vector<std::pair<std::string, std::string>> calls;  // names and arguments
  std::string reason;

  bool operator==(const Answer&) const = default;
};

void PrintTo(const Submitted& submitted, std::ostream* out) {
  *out << submitted.prompt.size() << " tokens, at most " << submitted.max_tokens << ", grammar "
       << submitted.grammar << ", kv " << submitted.kv;
}
void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "[" << answer.text << "] [" << answer.reasoning << "] " << answer.reason << ", "
       << answer.calls.size() << " calls";
}

std::string name_of_reason(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_TOOL_CALLS:
      return "tool_calls";
    default:
      return v1::FinishReason_Name(reason);
  }
}

v1::GenerateRequest message_of(const Case& one) {
  v1::GenerateRequest message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(one.proto, &message)) << one.name;
  return message;
}

class Parity : public HttpFixture {
 protected:
  void start_both(const std::string& answer) {
    fake.engine->answer_with([answer](const EngineRequest&) { return answer; });
    start();
    auto started =
        GrpcListener::start({.address = "127.0.0.1", .port = 0}, *fake.service, fake.work);
    ASSERT_TRUE(started.ok()) << started.status();
    grpc_ = *std::move(started);
    stub_ = v1::Inference::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(grpc_->port()),
                                                       grpc::InsecureChannelCredentials()));
  }

  ~Parity() override { grpc_.reset(); }

  std::vector<Submitted> submitted_since(std::size_t first) {
    std::vector<Submitted> all;
    for (std::size_t id = first; id < fake.engine->requests(); ++id) {
      const EngineRequest request = fake.engine->request(id);
      all.push_back({request.prompt, texts_of(request), request.max_tokens,
                     request.grammar != nullptr, std::string(request.kv ? request.kv->name : "")});
      all.back().options.erase("seed");
    }
    return all;
  }

  // Returns: the sequences of the answer.
  std::vector<Answer> over_http(const Case& one) {
    HttpClient client(port());
    const std::string limit = one.body.find("max_tokens") == std::string::npos && !one.chat
                                  ? R"("max_tokens":1000,)"  // the default is another
                                  : "";
    const HttpClientResponse got = client.post(
        one.chat ? "/v1/chat/completions" : "/v1/completions", "{" + limit + one.body + "}");
    EXPECT_EQ(got.status, 200) << got.body;
    const json body = json::parse(got.body);
    std::vector<Answer> answers;
    for (const json& choice : body.value("choices", json::array())) {
      Answer& answer = answers.emplace_back();
      answer.reason = choice.at("finish_reason");
      if (!one.chat) {
        answer.text = choice.at("text");
        continue;
      }
      const json& message = choice.at("message");
      answer.text = message.at("content").is_null() ? "" : message.at("content");
      answer.reasoning = message.value("reasoning_content", "");
      for (const json& call : message.value("tool_calls", json::array())) {
        answer.calls.emplace_back(call.at("function").at("name"),
                                  call.at("function").at("arguments"));
      }
    }
    http_usage_ = body.value("usage", json::object());
    return answers;
  }

  std::vector<Answer> over_grpc(const Case& one) {
    v1::GenerateRequest request = message_of(one);
    if (!one.chat && !request.has_max_tokens()) {
      request.set_max_tokens(1000);
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    auto reader = stub_->Generate(&context, request);
    std::map<int32_t, Answer> answers;
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      Answer& answer = answers[message.index()];
      EXPECT_EQ(answer.reason, "") << "a message after the last";
      answer.text += message.text();
      answer.reasoning += message.reasoning();
      for (const v1::ToolCallPart& part : message.tool_calls()) {
        const auto index = static_cast<std::size_t>(part.index());
        if (index == answer.calls.size()) {
          EXPECT_TRUE(part.id().starts_with("call_")) << part.id();
          answer.calls.emplace_back(part.name(), "");
        } else {
          EXPECT_EQ(part.id() + part.name(), "");
        }
        answer.calls.at(index).second += part.arguments();
      }
      if (message.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
        answer.reason = name_of_reason(message.finish_reason());
      }
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    grpc_usage_ = message.usage();
    std::vector<Answer> all;
    for (auto& [index, answer] : answers) {
      EXPECT_EQ(static_cast<std::size_t>(index), all.size());
      all.push_back(std::move(answer));
    }
    return all;
  }

  v1::EmbedResponse embedded(const v1::EmbedRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::EmbedResponse response;
    const grpc::Status status = stub_->Embed(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  json http_usage_;
  v1::Usage grpc_usage_;

 private:
  std::unique_ptr<GrpcListener> grpc_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

class EachCase : public Parity, public testing::WithParamInterface<std::size_t> {};

TEST_P(EachCase, IsAnsweredTheSameOverBoth) {
  const Case one = cases().at(GetParam());
  SCOPED_TRACE(one.name);
  start_both(one.answer);
  const std::vector<Answer> http = over_http(one);
  const std::vector<Submitted> http_submitted = submitted_since(0);
  const std::vector<Answer> answers = over_grpc(one);
  const std::vector<Submitted> submitted = submitted_since(http_submitted.size());
  EXPECT_EQ(answers, http);
  ASSERT_FALSE(http_submitted.empty());
  ASSERT_EQ(submitted.size(), http_submitted.size());
  for (std::size_t i = 0; i < submitted.size(); ++i) {
    EXPECT_EQ(submitted[i], http_submitted[i]);
    EXPECT_EQ(submitted[i].options, http_submitted[i].options);
  }
  EXPECT_EQ(grpc_usage_.prompt_tokens(), http_usage_.at("prompt_tokens"));
  EXPECT_EQ(grpc_usage_.completion_tokens(), http_usage_.at("completion_tokens"));
}

INSTANTIATE_TEST_SUITE_P(Parity, EachCase, testing::Range<std::size_t>(0, cases().size()));

// An embeddings request in both forms.
struct EmbeddingCase {
  std::string body;
  std::string proto;
};

TEST_F(Parity, EmbeddingsAreReadAndAnsweredTheSameOverBoth) {
  start_both("");
  for (const EmbeddingCase& one :
       {EmbeddingCase{R"("input":"hi")", R"(inputs { text: "hi" })"},
        EmbeddingCase{R"("input":["hi","b"],"model":"fake","dimensions":3)",
                      R"(inputs { text: "hi" } inputs { text: "b" } model: "fake" dimensions: 3)"},
        EmbeddingCase{R"("input":[[5,6],[7]],"normalize":false,"pooling":"mean")",
                      "inputs { tokens { ids: 5 ids: 6 } } inputs { tokens { ids: 7 } } "
                      "normalize: false pooling: POOLING_MEAN"},
        EmbeddingCase{R"("input":"hi","pooling":"cls","add_special_tokens":false)",
                      R"(inputs { text: "hi" } pooling: POOLING_CLS add_special_tokens: false)"},
        EmbeddingCase{R"("input":"hi","pooling":"last","priority":2,"deterministic":true,
                            "cache_salt":"s","cache_prompt":false,"kv_cache":{"sinks":4})",
                      R"(inputs { text: "hi" } pooling: POOLING_LAST priority: 2
                            deterministic: true cache { salt: "s" use: false } kv { sinks: 4 })"}}) {
    SCOPED_TRACE(one.body);
    const std::size_t before = fake.engine->requests();
    HttpClient client(port());
    const json got = json::parse(client.post("/v1/embeddings", "{" + one.body + "}").body);
    ASSERT_TRUE(got.contains("data")) << got;
    const std::size_t between = fake.engine->requests();
    v1::EmbedRequest message;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(one.proto, &message));
    const v1::EmbedResponse answer = embedded(message);
    std::vector<Submitted> submitted = submitted_since(before);
    ASSERT_EQ(submitted.size(), 2 * (between - before));
    for (std::size_t i = 0; i < submitted.size() / 2; ++i) {
      EXPECT_EQ(submitted[i], submitted[i + submitted.size() / 2]);
      EXPECT_EQ(fake.engine->request(before + i).pooling,
                fake.engine->request(between + i).pooling);
    }
    ASSERT_EQ(static_cast<std::size_t>(answer.embeddings_size()), got.at("data").size());
    for (int i = 0; i < answer.embeddings_size(); ++i) {
      const auto values =
          got.at("data").at(static_cast<std::size_t>(i)).at("embedding").get<std::vector<float>>();
      EXPECT_TRUE(std::equal(values.begin(), values.end(), answer.embeddings(i).values().begin(),
                             answer.embeddings(i).values().end()));
    }
    EXPECT_EQ(answer.model(), got.at("model"));
    EXPECT_EQ(answer.prompt_tokens(), got.at("usage").at("prompt_tokens"));
  }
}

std::string printed(const Conversation& chat) {
  std::string text = chat.variables + (chat.continue_final ? " continued\n" : "\n");
  for (const std::string& tool : chat.tools) {
    text += tool + "\n";
  }
  for (const ChatMessage& message : chat.messages) {
    text += fmt::format("{}|{}|{}|{}|{}\n", message.role, message.content, message.tool_call_id,
                        message.name, message.reasoning);
    for (const ToolCall& call : message.tool_calls) {
      text += fmt::format("  {}|{}|{}\n", call.id, call.name, call.arguments);
    }
  }
  return text;
}

TEST(Conversations, AreReadTheSameFromBothForms) {
  int chats = 0;
  for (const Case& one : cases()) {
    if (!one.chat) {
      continue;
    }
    SCOPED_TRACE(one.name);
    const auto http = parse_chat_request("{" + one.body + "}");
    const auto call = parse_generate_request(message_of(one));
    ASSERT_TRUE(http.ok()) << http.status();
    ASSERT_TRUE(call.ok()) << call.status();
    EXPECT_EQ(printed(std::get<Conversation>(call->prompts.at(0))),
              printed(std::get<Conversation>(http->prompts.at(0))));
    EXPECT_EQ(call->tools.choice, http->tools.choice);
    EXPECT_EQ(call->tools.only, http->tools.only);
    EXPECT_EQ(call->tools.parallel, http->tools.parallel);
    ASSERT_EQ(call->tools.tools.size(), http->tools.tools.size());
    for (std::size_t i = 0; i < http->tools.tools.size(); ++i) {
      EXPECT_EQ(call->tools.tools[i].parameters, http->tools.tools[i].parameters);
      EXPECT_EQ(call->tools.tools[i].strict, http->tools.tools[i].strict);
    }
    ++chats;
  }
  EXPECT_GE(chats, 15);
}

}  // namespace
}  // namespace tessera
