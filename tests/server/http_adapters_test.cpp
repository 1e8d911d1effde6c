// Adapters (LoRA) over HTTP: their names as models, and the admin routes that load them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/adapter_files.h"
#include "tests/server/http_fixture.h"
#include "tests/server/written_tenants.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class HttpAdapters : public testing::Test {
 protected:
  ~HttpAdapters() override {
    if (listener_) listener_->stop();
  }

  void start(RoutesOptions options = {}) {
    fake_.engine->adapt(AdapterFiles::config());
    fake_.engine->answer_with([](const EngineRequest& request) {
      return request.adapter == nullptr ? "base" : request.adapter->fingerprint().substr(0, 1);
    });
    routes_ = std::make_unique<Routes>(std::move(options));
    routes_->attach(*fake_.service);
    auto started = HttpListener::start({.port = 0}, *routes_, fake_.work);
    ASSERT_TRUE(started.ok()) << started.status();
    listener_ = *std::move(started);
  }
  HttpClient client() const { return HttpClient(listener_->port()); }
  std::string body(const std::string& name, uint32_t seed) {
    return json{{"lora_name", name}, {"lora_path", files_.write(name, seed).string()}}.dump();
  }

  AdapterFiles files_;
  FakeService fake_{true, {"alias"}, std::make_unique<FakeTokenizer>(), {}, 1 << 20};
  std::unique_ptr<Routes> routes_;
  std::unique_ptr<HttpListener> listener_;
};

TEST_F(HttpAdapters, AreLoadedNamedUsedAndUnloaded) {
  start();
  HttpClient client = this->client();
  const auto loaded = client.post("/v1/load_lora_adapter", body("sql", 1));
  EXPECT_EQ(loaded.status, 200) << loaded.body;
  EXPECT_EQ(loaded.body, "Success: LoRA adapter 'sql' added successfully.");
  const json cards = json::parse(client.get("/v1/models").body).at("data");
  ASSERT_EQ(cards.size(), 3U);
  EXPECT_EQ(cards[2].at("id"), "sql");
  EXPECT_EQ(cards[2].at("root"), "sql");
  EXPECT_EQ(cards[2].at("parent"), "fake");
  EXPECT_TRUE(cards[1].at("parent").is_null());
  EXPECT_EQ(json::parse(client.get("/v1/models/sql").body).at("parent"), "fake");
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":9)";
  for (const auto& [path, head] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/completions", R"({"prompt":"a","max_tokens":9)"},
           {"/v1/chat/completions", chat},
           {"/v1/messages", chat},
           {"/v1/responses", R"({"input":"a","max_output_tokens":9)"},
           {"/infill", R"({"input_prefix":"a","input_suffix":"b","n_predict":9)"},
           {"/v1/embeddings", R"({"input":"a")"},
           {"/v1/score", R"({"text_1":"a","text_2":"b")"},
           {"/rerank", R"({"query":"a","documents":["b"])"}}) {
    for (const bool adapted : {true, false}) {
      const std::size_t first = fake_.engine->requests();
      const auto reply =
          client.post(path, head + R"(,"model":")" + (adapted ? "sql" : "alias") + R"("})");
      if (path == "/infill" && reply.status != 200) continue;  // the fake has no tokens for it
      EXPECT_EQ(reply.status, 200) << path << reply.body;
      EXPECT_EQ(!fake_.engine->fingerprint(first).empty(), adapted) << path;
    }
  }
  EXPECT_EQ(client.post("/tokenize", R"({"prompt":"a","model":"sql"})").status, 200);
  const auto unloaded = client.post("/v1/unload_lora_adapter", R"({"lora_name":"sql"})");
  EXPECT_EQ(unloaded.body, "Success: LoRA adapter 'sql' removed successfully.");
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt":"a","model":"sql"})").status, 404);
  EXPECT_EQ(client.post("/v1/unload_lora_adapter", R"({"lora_name":"sql"})").status, 404);
  EXPECT_EQ(json::parse(client.get("/v1/models").body).at("data").size(), 2U);
}

// The store has room for a few adapters, so that most requests wait for a read.
TEST_F(HttpAdapters, ARequestWaitsForAnAdapterThatHasLeftMemory) {
  start();
  const int64_t each = fake_.engine->measure_adapter(files_.write("measured", 1)).value();
  const int64_t fit = (1 << 20) / each;
  HttpClient client = this->client();
  for (int64_t i = 0; i <= fit; ++i) {
    const std::string name = "n" + std::to_string(i);
    ASSERT_EQ(client.post("/v1/load_lora_adapter", body(name, static_cast<uint32_t>(i))).status,
              200);
  }
  ASSERT_EQ(fake_.service->adapters()->find("n0").value(), nullptr);
  for (const char* stream : {"false", "true"}) {
    const auto reply = client.post(
        "/v1/completions",
        std::string(R"({"prompt":"a","max_tokens":1,"model":"n0","stream":)") + stream + "}");
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_FALSE(fake_.engine->fingerprint(fake_.engine->requests() - 1).empty());
    EXPECT_NE(fake_.service->adapters()->find("n0").value(), nullptr);
    ASSERT_EQ(
        client.post("/v1/completions", R"({"prompt":"a","max_tokens":1,"model":"n1"})").status,
        200);
  }
}

TEST_F(HttpAdapters, ErrorsNameTheField) {
  start();
  HttpClient client = this->client();
  for (const auto& [body, field] : std::vector<std::pair<std::string, std::string>>{
           {R"({"lora_path":"x"})", "lora_name"},
           {R"({"lora_name":"x"})", "lora_path"},
           {R"({"lora_name":7,"lora_path":"x"})", "lora_name"},
           {R"({"lora_name":"fake","lora_path":"x"})", "lora_name"},
           {R"({"lora_name":"alias","lora_path":"x"})", "lora_name"},
           {R"({"lora_name":"x","lora_path":"x","load_inplace":true})", "load_inplace"}}) {
    const auto reply = client.post("/v1/load_lora_adapter", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(json::parse(reply.body).at("error").at("param"), field) << reply.body;
  }
  const auto nowhere =
      client.post("/v1/load_lora_adapter", R"({"lora_name":"x","lora_path":"/nowhere"})");
  EXPECT_EQ(nowhere.status, 404);
  EXPECT_THAT(nowhere.body, HasSubstr("/nowhere: there is no such adapter"));
  ASSERT_EQ(client.post("/v1/load_lora_adapter", body("sql", 1)).status, 200);
  const auto again = client.post("/v1/load_lora_adapter", body("sql", 1));
  EXPECT_EQ(again.status, 409) << again.body;
}

using HttpWithoutAdapters = HttpFixture;

TEST_F(HttpWithoutAdapters, SaysHowToStartAServerThatLoadsAdapters) {
  start();
  HttpClient client(port());
  const auto reply = client.post("/v1/load_lora_adapter", R"({"lora_name":"x","lora_path":"y"})");
  EXPECT_EQ(reply.status, 501) << reply.body;
  EXPECT_THAT(reply.body, HasSubstr("--lora-memory"));
}

}  // namespace
}  // namespace tessera
