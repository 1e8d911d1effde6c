// Answers between a text and its suffix: `suffix` of completions, and llama-server's /infill.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Has these texts as tokens from 300 on, besides those of FakeTokenizer.
class CoderTokenizer final : public Tokenizer {
 public:
  explicit CoderTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  std::vector<int32_t> encode(std::span<const TextSegment> segments, bool add_bos) const override {
    std::vector<int32_t> ids = plain_.encode({}, add_bos);
    for (const TextSegment& segment : segments) {
      std::string rest = segment.text;
      while (!rest.empty()) {
        const auto token = std::ranges::find_if(tokens_, [&](const std::string& text) {
          return segment.parse_special && rest.starts_with(text);
        });
        const bool found = token != tokens_.end();
        ids.push_back(found ? 300 + static_cast<int32_t>(token - tokens_.begin())
                            : static_cast<uint8_t>(rest.front()));
        rest.erase(0, found ? token->size() : 1);
      }
    }
    return ids;
  }
  std::string token_bytes(int32_t id, bool keep_special) const override {
    return id < 300 ? plain_.token_bytes(id, keep_special)
                    : tokens_.at(static_cast<size_t>(id - 300));
  }
  bool strips_leading_space() const override { return false; }
  bool is_special(int32_t id) const override { return plain_.is_special(id) && id < 300; }
  std::optional<int32_t> special_id(std::string_view text) const override {
    return plain_.special_id(text);
  }
  int32_t vocab_size() const override { return 300 + static_cast<int32_t>(tokens_.size()); }
  std::optional<int32_t> bos_id() const override { return plain_.bos_id(); }
  std::optional<int32_t> eos_id() const override { return plain_.eos_id(); }

 private:
  const FakeTokenizer plain_;
  const std::vector<std::string> tokens_;
};

const std::vector<std::string> kQwen = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
                                        "<|repo_name|>",  "<|file_sep|>",   "<|fim_pad|>"};

class HttpInfill : public testing::Test {
 protected:
  ~HttpInfill() override {
    if (listener_) {
      listener_->stop();
    }
  }

  // Serves a model that has these tokens.
  void serve(std::vector<std::string> tokens) {
    fake_ = std::make_unique<FakeService>(/*chats=*/true, std::vector<std::string>{},
                                          std::make_unique<CoderTokenizer>(std::move(tokens)));
    fake_->engine->answer_with([](const EngineRequest&) { return "mid"; });
    routes_ = std::make_unique<Routes>(RoutesOptions{});
    routes_->attach(*fake_->service);
    auto started = HttpListener::start({.port = 0}, *routes_, fake_->work);
    ASSERT_TRUE(started.ok()) << started.status();
    listener_ = *std::move(started);
  }

  HttpClientResponse post(const std::string& path, const std::string& fields) {
    HttpClient client(listener_->port());
    return client.post(path, "{" + fields + "}");
  }

  EngineRequest last() const { return fake_->engine->request(fake_->engine->requests() - 1); }
  std::string prompt() const { return *fake_->service->prompts().detokenize(last().prompt); }

  std::unique_ptr<FakeService> fake_;
  std::unique_ptr<Routes> routes_;
  std::unique_ptr<HttpListener> listener_;
};

TEST_F(HttpInfill, ASuffixStandsAfterTheAnswer) {
  serve(kQwen);
  const auto response =
      post("/v1/completions", R"("prompt":"def f(","suffix":"):\n","max_tokens":9)");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(json::parse(response.body).at("choices").at(0).at("text"), "mid");
  EXPECT_EQ(prompt(), "<s><|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>");
  EXPECT_THAT(last().stop_ids, testing::ElementsAre(305, 303, 304)) << "another file, or padding";
  post("/v1/completions", R"("prompt":["a","b"],"suffix":"c","max_tokens":9,"stream":true)");
  EXPECT_EQ(prompt(), "<s><|fim_prefix|>b<|fim_suffix|>c<|fim_middle|>");
  post("/v1/completions", R"("prompt":"a","suffix":"","max_tokens":9)");
  EXPECT_EQ(prompt(), "<s>a");
  EXPECT_TRUE(last().stop_ids.empty());
}

TEST_F(HttpInfill, TheOrderIsThatOfTheModelsFamily) {
  for (const auto& [tokens, expected] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
            "<s><fim_prefix>a<fim_suffix>b<fim_middle>"},
           {{"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
            "<s><｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>"},
           {{"[PREFIX]", "[SUFFIX]", "[MIDDLE]"}, "<s>[SUFFIX]b[PREFIX]a"}}) {
    serve(tokens);
    EXPECT_EQ(post("/v1/completions", R"("prompt":"a","suffix":"b")").status, 200);
    EXPECT_EQ(prompt(), expected);
    listener_->stop();
  }
}

TEST_F(HttpInfill, ATextCannotContainTheTokensUnlessItIsParsed) {
  serve(kQwen);
  post("/infill", R"("input_prefix":"a<|fim_middle|>","input_suffix":"b")");
  const std::vector<int32_t> ids = last().prompt;
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 302), 1);
  post("/v1/completions", R"("prompt":"<|fim_middle|>","suffix":"b","parse_special":false)");
  const std::vector<int32_t> plain = last().prompt;
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 302), 1);
}

TEST_F(HttpInfill, WhatCannotBeCombinedIsRefused) {
  serve(kQwen);
  for (const auto& [fields, param] : std::vector<std::pair<std::string, std::string>>{
           {R"("prompt":[1,2],"suffix":"b")", "suffix"},
           {R"("prompt":"a","suffix":["b"])", "suffix"},
           {R"("prompt":"a","suffix":"b","echo":true)", "echo"},
           {R"("prompt":"a","suffix":"b","truncate_prompt_tokens":3)", "truncate_prompt_tokens"}}) {
    const auto response = post("/v1/completions", fields);
    EXPECT_EQ(response.status, 400) << fields;
    EXPECT_EQ(json::parse(response.body).at("error").at("param"), param) << fields;
  }
  EXPECT_EQ(
      post("/v1/chat/completions", R"("messages":[{"role":"user","content":"a"}],"suffix":"b")")
          .status,
      400);
}

TEST_F(HttpInfill, AModelWithoutTheTokensIsNamed) {
  serve({"<|fim_prefix|>", "<|fim_suffix|>"});
  for (const auto& [path, fields, param] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"/v1/completions", R"("prompt":"a","suffix":"b")", "suffix"},
           {"/infill", R"("input_prefix":"a","input_suffix":"b")", "input_suffix"}}) {
    const auto response = post(path, fields);
    EXPECT_EQ(response.status, 400) << path;
    const json error = json::parse(response.body).at("error");
    EXPECT_EQ(error.at("param"), param);
    EXPECT_EQ(error.at("code"), "unsupported_parameter");
    EXPECT_THAT(error.at("message").get<std::string>(),
                HasSubstr("the model fake has no tokens to fill in the middle of a text"));
  }
}

// The fields that llama.vim and llama.vscode send.
TEST_F(HttpInfill, EditorsAreAnsweredAsLlamaServerDoes) {
  serve(kQwen);
  const std::string fields =
      R"("id_slot":0,"input_prefix":"int main() {\n","input_suffix":"}\n","prompt":"  ret",
         "input_extra":[{"filename":"a.h","text":"int a;","time":1}],"n_predict":9,"n_indent":2,
         "top_k":40,"top_p":0.9,"samplers":["top_k","infill"],"cache_prompt":true,"seed":-1,
         "t_max_prompt_ms":500,"t_max_predict_ms":1000,"response_fields":["content"])";
  const auto whole = post("/infill", fields);
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(prompt(),
            "<s><|repo_name|>repository\n<|file_sep|>a.h\nint a;\n<|file_sep|>"
            "<|fim_prefix|>int main() {\n<|fim_suffix|>}\n<|fim_middle|>  ret");
  const json body = json::parse(whole.body);
  EXPECT_EQ(body.at("content"), "mid");
  EXPECT_EQ(body.at("stop"), true);
  EXPECT_EQ(body.at("stop_type"), "eos");
  EXPECT_EQ(body.at("tokens_predicted"), 3);
  EXPECT_EQ(body.at("tokens_evaluated"), last().prompt.size());
  const auto events = events_of(post("/infill", fields + R"(,"stream":true,"stop":"d")").body);
  ASSERT_GE(events.size(), 2u);
  std::string text;
  for (const std::string& event : events) {
    text += json::parse(event).at("content").get<std::string>();
    EXPECT_EQ(json::parse(event).at("stop"), &event == &events.back());
  }
  EXPECT_EQ(text, "mi");
  EXPECT_EQ(json::parse(events.back()).at("stop_type"), "word");
  EXPECT_EQ(json::parse(events.back()).at("stopping_word"), "d");
}

TEST_F(HttpInfill, ABodyOfAnEditorIsChecked) {
  serve(kQwen);
  for (const auto& [fields, param] : std::vector<std::pair<std::string, std::string>>{
           {R"("n_predict":3)", "input_prefix"},
           {R"("input_prefix":1)", "input_prefix"},
           {R"("input_prefix":"a","n_predict":-2)", "n_predict"},
           {R"("input_prefix":"a","input_extra":{})", "input_extra"},
           {R"("input_prefix":"a","input_extra":["x"])", "input_extra[0]"},
           {R"("input_prefix":"a","input_extra":[{"text":1}])", "input_extra[0].text"},
           {R"("input_prefix":"a","unheard_of":1)", "unheard_of"}}) {
    const auto response = post("/infill", fields);
    EXPECT_EQ(response.status, 400) << fields;
    EXPECT_EQ(json::parse(response.body).at("error").at("param"), param) << fields;
  }
  EXPECT_EQ(post("/infill", R"("input_suffix":"b","n_predict":-1)").status, 200);
  EXPECT_EQ(prompt(), "<s><|fim_prefix|><|fim_suffix|>b<|fim_middle|>");
}

}  // namespace
}  // namespace tessera
