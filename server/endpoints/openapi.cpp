#include "server/endpoints/openapi.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/check.h"
#include "server/anthropic/messages_request.h"
#include "server/base/error.h"
#include "server/endpoints/adapters.h"
#include "server/endpoints/cache_moves.h"
#include "server/endpoints/log_level.h"
#include "server/json/print_json.h"
#include "server/json/recorded_fields.h"
#include "server/openai/embeddings_request.h"
#include "server/openai/infill_request.h"
#include "server/openai/request.h"
#include "server/openai/score_request.h"
#include "server/responses/responses_request.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

namespace {

using Json = nlohmann::ordered_json;

template <auto parse>
absl::Status status_of_parse(std::string_view body) {
  return parse(body).status();
}

constexpr std::string_view kChatSample =
    R"({"messages":[{"role":"user","content":"a"}],"seed":1,
        "stream":true,"stream_options":{},"cache":{},"prompt_logprobs":null,"min_tokens":0,"kv_floor":1,
        "truncate_prompt_tokens":1,"dry_sequence_breakers":["a"]})";
constexpr std::string_view kMessagesSample =
    R"({"messages":[{"role":"user","content":"a"}],"max_tokens":1,"cache":{},
        "dry_sequence_breakers":["a"]})";

constexpr std::string_view kResponsesSample =
    R"({"input":"a","stream":true,"stream_options":{},"cache":{},"text":{},"reasoning":{},
        "dry_sequence_breakers":["a"]})";

constexpr std::string_view kRerankSample =
    R"({"query":"a","documents":["b"],"dimensions":1,"cache":{}})";

constexpr std::string_view kCompletionSample =
    R"({"prompt":"a","seed":1,"logprobs":0,"best_of":1,"stream":true,
        "stream_options":{},"cache":{},"min_tokens":0,"kv_floor":1,
        "truncate_prompt_tokens":1,"dry_sequence_breakers":["a"]})";

constexpr RouteBody kBodies[] = {
    {"/v1/completions", status_of_parse<parse_completion_request>, kCompletionSample},
    {"/v1/chat/completions", status_of_parse<parse_chat_request>, kChatSample},
    {"/infill", status_of_parse<parse_infill_request>,
     R"({"input_prefix":"a","input_suffix":"b","stream":true,"cache":{},
         "dry_sequence_breakers":["a"]})"},
    {"/apply-template", status_of_parse<parse_chat_request>, kChatSample},
    {"/v1/responses", status_of_parse<parse_responses_request>, kResponsesSample},
    {"/v1/responses/input_tokens", status_of_parse<parse_responses_request>, kResponsesSample},
    {"/v1/messages", status_of_parse<parse_messages_request>, kMessagesSample},
    {"/v1/messages/count_tokens", status_of_parse<parse_count_tokens_request>,
     R"({"messages":[{"role":"user","content":"a"}]})"},
    {"/v1/embeddings", status_of_parse<parse_embeddings_request>,
     R"({"input":"a","dimensions":1,"cache":{}})"},
    {"/v1/score", status_of_parse<parse_score_request>,
     R"({"text_1":"a","text_2":"b","dimensions":1,"cache":{}})"},
    {"/v1/score", status_of_parse<parse_score_request>, R"({"queries":"a","items":"b"})"},
    {"/v1/score", status_of_parse<parse_score_request>, R"({"queries":"a","documents":"b"})"},
    {"/v1/score", status_of_parse<parse_score_request>, R"({"data_1":"a","data_2":"b"})"},
    {"/v1/rerank", status_of_parse<parse_rerank_request>, kRerankSample},
    {"/v2/rerank", status_of_parse<parse_rerank_request>, kRerankSample},
    {"/v1/cache/export", status_of_parse<parse_export_request>, kCompletionSample},
    {"/v1/cache/export", status_of_parse<parse_export_request>, kChatSample},
    {"/v1/log-level", status_of_parse<parse_log_level_request>, R"({"level":"info"})"},
    {"/v1/load_lora_adapter", status_of_parse<parse_load_adapter_request>,
     R"({"lora_name":"a","lora_path":"b"})"},
    {"/v1/unload_lora_adapter", status_of_parse<parse_unload_adapter_request>,
     R"({"lora_name":"a"})"},
    {"/tokenize", status_of_parse<parse_tokenize_request>, R"({"prompt":"a"})"},
    {"/tokenize", status_of_parse<parse_tokenize_request>, R"({"content":"a"})"},
    {"/tokenize", status_of_parse<parse_tokenize_request>,
     R"({"messages":[{"role":"user","content":"a"}]})"},
    {"/detokenize", status_of_parse<parse_detokenize_request>, R"({"tokens":[1]})"},
};

// Returns: true if `status` is the error of that field.
bool refuses(const absl::Status& status, const std::string& field) {
  return !status.ok() && Json::parse(print_error(status)).at("error").at("param") == field;
}

// Returns: true if each form of the route's body needs the field.
bool needed(std::string_view path, const std::string& field) {
  return std::all_of(std::begin(kBodies), std::end(kBodies), [&](const RouteBody& body) {
    Json without = Json::parse(body.sample);
    without.erase(field);
    return body.path != path || refuses(body.parse(print_json(without)), field);
  });
}

Json schema_of(std::string_view path) {
  RecordedFields recorded;
  std::set<std::string> names;
  for (const RouteBody& body : kBodies) {
    if (body.path == path) {
      const absl::Status parsed = body.parse(body.sample);
      TESSERA_CHECK(parsed.ok(), "the sample of a route's body is refused");
      const Json sample = Json::parse(body.sample);
      for (const auto& [name, value] : sample.items()) {
        names.insert(name);
      }
    }
  }
  Json schema = recorded.schema();
  Json required = Json::array();
  std::copy_if(names.begin(), names.end(), std::back_inserter(required),
               [&](const std::string& name) { return needed(path, name); });
  if (!required.empty()) {
    schema["required"] = std::move(required);
  }
  return schema;
}

// Returns: true if the body is that of the route, which may be there without /v1 too.
bool is_body_of(const RouteBody& body, const Route& route) {
  constexpr std::string_view kVersion = "/v1";
  return route.method == "POST" &&
         (body.path == route.path ||
          (body.path.starts_with(kVersion) && body.path.substr(kVersion.size()) == route.path));
}

Json operation_of(const Route& route) {
  Json operation = {{"operationId", fmt::format("{} {}", route.method, route.path)}};
  if (route.access == Access::open) {
    operation["security"] = Json::array();
  }
  if (route.path.ends_with('*')) {
    operation["parameters"] = Json::array(
        {{{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  }
  const auto body = std::find_if(std::begin(kBodies), std::end(kBodies),
                                 [&](const RouteBody& one) { return is_body_of(one, route); });
  if (body != std::end(kBodies)) {
    operation["requestBody"] = {
        {"required", true},
        {"content", {{"application/json", {{"schema", schema_of(body->path)}}}}}};
  }
  if (route.path == "/v1/cache/import") {
    operation["requestBody"] = {
        {"required", true},
        {"content",
         {{"application/octet-stream", {{"schema", {{"type", "string"}, {"format", "binary"}}}}}}}};
  }
  operation["responses"] = {{"200", {{"description", "the answer"}}},
                            {"default", {{"$ref", "#/components/responses/error"}}}};
  return operation;
}

std::string in_lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

Json components() {
  const Json text = {{"type", "string"}};
  const Json maybe_text = {{"type", {"string", "null"}}};
  const Json error = {
      {"type", "object"},
      {"properties",
       {{"message", text}, {"type", text}, {"param", maybe_text}, {"code", maybe_text}}}};
  const Json schema = {{"type", "object"}, {"properties", {{"error", error}}}};
  return {{"securitySchemes",
           {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
            {"key", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}}},
          {"responses",
           {{"error",
             {{"description", "an error"},
              {"content", {{"application/json", {{"schema", schema}}}}}}}}}};
}

}  // namespace

std::span<const RouteBody> route_bodies() {
  return kBodies;
}

HttpReply answer_openapi() {
  static const std::string description = print_openapi();
  return json_reply(description);
}

std::string print_openapi() {
  Json paths = Json::object();
  for (const Route& route : kRoutes) {
    std::string path(route.path);
    if (path.ends_with('*')) {
      path.replace(path.size() - 1, 1, "{name}");
    }
    paths[path][in_lower_case(route.method)] = operation_of(route);
  }
  return print_json(
      {{"openapi", "3.1.0"},
       {"info", {{"title", "tessera-server"}, {"version", TESSERA_VERSION}}},
       {"security", Json::array({Json{{"bearer", Json::array()}}, Json{{"key", Json::array()}}})},
       {"paths", std::move(paths)},
       {"components", components()}});
}

}  // namespace tessera
