#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "server/base/error.h"
#include "server/endpoints/openapi.h"
#include "server/routes/route_table.h"
#include "tests/server/http_fixture.h"

// Routes that describe the server: its fields, its model by each name, its template.
namespace tessera {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class HttpDescription : public HttpFixture {};

json openapi() {
  return json::parse(print_openapi());
}

json schema_of(const json& description, std::string_view path) {
  return description.at("paths")
      .at(std::string(path))
      .at("post")
      .at("requestBody")
      .at("content")
      .at("application/json")
      .at("schema");
}

std::string param_of(const absl::Status& status) {
  const json param = json::parse(print_error(status)).at("error").at("param");
  return param.is_null() ? "" : param.get<std::string>();
}

// Returns: a value that the schema excludes, or nothing.
std::optional<json> outside(const json& schema) {
  if (!schema.contains("type")) {
    return std::nullopt;
  }
  if (schema.contains("minimum")) {
    return schema.at("minimum").get<double>() - 1;
  }
  const json& type = schema.at("type").at(0);
  return type == "boolean" ? json("no") : json(true);
}

// Returns: true if each form of the route's body is refused without the field.
bool needed(std::string_view path, const std::string& field) {
  const auto bodies = route_bodies();
  return std::all_of(bodies.begin(), bodies.end(), [&](const RouteBody& body) {
    json without = json::parse(body.sample);
    without.erase(field);
    const absl::Status status = body.parse(without.dump());
    return body.path != path || (!status.ok() && param_of(status) == field);
  });
}

TEST(OpenApi, HasEachRouteAndABodyForEachThatTakesOne) {
  const json paths = openapi().at("paths");
  std::size_t operations = 0;
  for (const Route& route : kRoutes) {
    std::string path(route.path);
    if (path.ends_with('*')) {
      path.replace(path.size() - 1, 1, "{name}");
    }
    const std::string method = route.method == "POST"  ? "post"
                               : route.method == "GET" ? "get"
                                                       : "delete";
    const json& operation = paths.at(path).at(method);
    EXPECT_EQ(operation.contains("requestBody"), method == "post" && path != "/v1/cache/flush")
        << path;
    EXPECT_EQ(operation.contains("security"), route.access == Access::open);
  }
  for (const auto& [path, methods] : paths.items()) {
    operations += methods.size();
  }
  EXPECT_EQ(operations, std::size(kRoutes));
}

// The parser is the oracle: it refuses values that the schema excludes, and names that field.
TEST(OpenApi, SaysOfFieldsWhatTheirParsersSay) {
  const json description = openapi();
  int compared = 0;
  for (const RouteBody& body : route_bodies()) {
    SCOPED_TRACE(body.path);
    const json sample = json::parse(body.sample);
    const json schema = schema_of(description, body.path);
    EXPECT_EQ(schema.at("additionalProperties"), false);
    json unknown = sample;
    unknown["no_such_field"] = 1;
    EXPECT_EQ(param_of(body.parse(unknown.dump())), "no_such_field");
    for (const auto& [name, property] : schema.at("properties").items()) {
      json changed = sample;
      if (const std::optional<json> value = outside(property)) {
        changed[name] = *value;
        const absl::Status status = body.parse(changed.dump());
        ASSERT_FALSE(status.ok()) << changed;
        EXPECT_EQ(param_of(status), name) << changed;
        ++compared;
      }
      const json required = schema.value("required", json::array());
      EXPECT_EQ(needed(body.path, name),
                std::find(required.begin(), required.end(), name) != required.end())
          << name;
    }
  }
  EXPECT_GT(compared, 100);
}

TEST(OpenApi, KnowsTheFieldsThatClientsSend) {
  const json properties = schema_of(openapi(), "/v1/chat/completions").at("properties");
  for (const char* name : {"messages", "tools", "tool_choice", "response_format", "logit_bias", "n",
                           "kv_cache", "guided_json", "chat_template_kwargs"}) {
    EXPECT_TRUE(properties.contains(name)) << name;
  }
  const json tokenize = schema_of(openapi(), "/tokenize");
  EXPECT_TRUE(tokenize.at("properties").contains("tools"));
  EXPECT_FALSE(tokenize.contains("required")) << "a text or a chat";
  EXPECT_EQ(schema_of(openapi(), "/detokenize").at("required"), json::parse(R"(["tokens"])"));
  EXPECT_FALSE(properties.contains("audio")) << "a missing feature";
  EXPECT_EQ(properties.at("temperature"),
            json::parse(R"({"type":["number","null"],"minimum":0.0,"maximum":100.0})"));
  EXPECT_EQ(properties.at("cache").at("properties").at("pin").at("type").at(0), "boolean");
  EXPECT_TRUE(properties.at("stream_options").at("properties").contains("include_usage"));
}

TEST_F(HttpDescription, IsServedFromTheStart) {
  start();
  HttpClient client(port());
  EXPECT_EQ(json::parse(client.get("/openapi.json").body), openapi());
}

TEST_F(HttpDescription, AModelAnswersToEachOfItsNames) {
  fake.engine->answer_with([](const EngineRequest&) { return "hi"; });
  start();
  HttpClient client(port());
  for (const char* path : {"/v1/models", "/models"}) {
    const json list = json::parse(client.get(path).body).at("data");
    ASSERT_EQ(list.size(), 2u);
    EXPECT_EQ(list[0].at("id"), "fake");
    EXPECT_EQ(list[1].at("id"), "alias");
    EXPECT_EQ(list[1].at("root"), "fake");
  }
  EXPECT_EQ(json::parse(client.get("/v1/models/alias").body).at("id"), "alias");
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":2)";
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/completions", R"({"prompt":"a")"},
           {"/v1/chat/completions", chat},
           {"/v1/messages", chat},
           {"/v1/responses", R"({"input":"a")"},
           {"/v1/embeddings", R"({"input":"a")"},
           {"/v1/score", R"({"text_1":"a","text_2":"b")"},
           {"/rerank", R"({"query":"a","documents":"b")"}}) {
    const auto named = [&](const std::string& model) {
      return json::parse(client.post(path, body + model + "}").body).value("model", "none");
    };
    EXPECT_EQ(named(""), "fake") << path;
    EXPECT_EQ(named(R"(,"model":"fake")"), "fake") << path;
    EXPECT_EQ(named(R"(,"model":"alias")"), "alias") << path;
  }
}

TEST_F(HttpDescription, AnyNameReachesAModelWithTheAliasOfAStar) {
  FakeService any(/*chats=*/true, {"alias", "*"});
  any.engine->answer_with([](const EngineRequest&) { return "hi"; });
  routes = std::make_unique<Routes>(RoutesOptions{});
  routes->attach(*any.service);
  auto started = HttpListener::start({.port = 0}, *routes, any.work);
  ASSERT_TRUE(started.ok()) << started.status();
  listener = *std::move(started);
  HttpClient client(port());
  const std::string chat = R"({"max_tokens":2,"messages":[{"role":"user","content":"a"}])";
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/completions", R"({"prompt":"a")"},
           {"/v1/chat/completions", chat},
           {"/v1/messages", chat},
           {"/v1/responses", R"({"input":"a")"},
           {"/v1/embeddings", R"({"input":"a")"},
           {"/v1/score", R"({"text_1":"a","text_2":"b")"},
           {"/rerank", R"({"query":"a","documents":"b")"}}) {
    const auto named = [&](const std::string& model) {
      return client.post(path, body + R"(,"model":")" + model + R"("})");
    };
    EXPECT_EQ(json::parse(named("openai/gpt-4o:latest").body).at("model"), "openai/gpt-4o:latest");
    const auto longer = named(std::string(257, 'x'));
    EXPECT_EQ(longer.status, 404) << path << ": each event would repeat it";
    EXPECT_LT(longer.body.size(), 600u);
  }
  EXPECT_EQ(client.post("/tokenize", R"({"prompt":"a","model":"x"})").status, 200);
  EXPECT_EQ(json::parse(client.get("/v1/models/claude-sonnet-4-5").body).at("root"), "fake");
  EXPECT_EQ(json::parse(client.get("/v1/models").body).at("data").size(), 2u) << "* is no name";
  listener.reset();  // its connections use `any`
}

TEST_F(HttpDescription, TellsTheTemplateAndWhatItMakesOfAChat) {
  start();
  HttpClient client(port());
  const json props = json::parse(client.get("/props").body);
  EXPECT_EQ(props.at("chat_template"), "{{ messages }}");
  EXPECT_EQ(props.at("bos_token"), "<s>");
  EXPECT_EQ(props.at("eos_token"), "</s>");
  EXPECT_EQ(props.at("total_slots"), 64);
  EXPECT_EQ(props.at("default_generation_settings").at("n_ctx"), 100'000);
  EXPECT_EQ(props.at("default_generation_settings").at("params").at("temperature"), 1.0);
  const json tokenizer = json::parse(client.get("/tokenizer_info").body);
  EXPECT_EQ(tokenizer.at("vocab_size"), 258);
  EXPECT_EQ(tokenizer.at("model_max_length"), 100'000);
  EXPECT_EQ(tokenizer.at("add_bos_token"), true);
  EXPECT_EQ(tokenizer.at("added_tokens_decoder").at("257").at("content"), "</s>");
  const auto prompt = [&](const std::string& members) {
    return client.post("/apply-template",
                       R"({"messages":[{"role":"user","content":"hello"}])" + members + "}");
  };
  EXPECT_EQ(json::parse(prompt("").body).at("prompt"), "<s>[user]hello[assistant]");
  EXPECT_EQ(json::parse(prompt(R"(,"add_generation_prompt":false)").body).at("prompt"),
            "<s>[user]hello");
  EXPECT_EQ(fake.engine->requests(), 0u);
  EXPECT_EQ(prompt(R"(,"mesages":1)").status, 400);
}

}  // namespace
}  // namespace tessera
