#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "server/http/handler.h"
#include "server/routes/endpoint.h"

namespace tessera {

// Endpoints, defined in server/endpoints/. The first form needs the loaded model; the second
// answers from the start.
using ModelEndpoint = HttpResult (*)(const EndpointContext&);
using PlainEndpoint = HttpReply (*)();

HttpReply answer_page();
HttpReply answer_icon();
HttpReply answer_version();
HttpReply answer_openapi();
HttpResult answer_health(const EndpointContext& context);
HttpResult answer_metrics(const EndpointContext& context);
HttpResult answer_embeddings(const EndpointContext& context);
HttpResult answer_score(const EndpointContext& context);
HttpResult answer_rerank(const EndpointContext& context);
HttpResult answer_props(const EndpointContext& context);
HttpResult answer_tokenizer_info(const EndpointContext& context);
HttpResult answer_apply_template(const EndpointContext& context);
HttpResult answer_models(const EndpointContext& context);
HttpResult answer_model(const EndpointContext& context);
HttpResult answer_completions(const EndpointContext& context);
HttpResult answer_infill(const EndpointContext& context);
HttpResult answer_chat_completions(const EndpointContext& context);
HttpResult answer_messages(const EndpointContext& context);
HttpResult answer_count_tokens(const EndpointContext& context);
HttpResult answer_responses(const EndpointContext& context);
HttpResult answer_input_tokens(const EndpointContext& context);
HttpResult answer_stored_response(const EndpointContext& context);
HttpResult answer_delete_response(const EndpointContext& context);
HttpResult answer_cache(const EndpointContext& context);
HttpResult answer_cache_flush(const EndpointContext& context);
HttpResult answer_cache_export(const EndpointContext& context);
HttpResult answer_cache_import(const EndpointContext& context);
HttpResult answer_log_level(const EndpointContext& context);
HttpResult answer_load_adapter(const EndpointContext& context);
HttpResult answer_unload_adapter(const EndpointContext& context);
HttpResult answer_tokenize(const EndpointContext& context);
HttpResult answer_detokenize(const EndpointContext& context);

// Requirement of a route on a server with API keys.
enum class Access : uint8_t {
  open,   // no key
  key,    // as `Authorization: Bearer`; as Basic only from the server's own pages
  page,   // the same, and Basic from anywhere: browsers are asked for it
  admin,  // as `key`, of one with the right to admin routes
};

// Amount of an endpoint's work, and the thread that does it.
enum class Work : uint8_t {
  little,  // on a thread of the listener: an amount that does not grow with the request
  grows,   // on the work pool
};

struct Route {
  std::string_view method;  // GET also answers HEAD; a path may have a line for each method
  std::string_view path;    // a final '*' stands for one or more characters
  std::variant<ModelEndpoint, PlainEndpoint> endpoint;
  Access access = Access::key;
  Work work = Work::little;
};

// The only list of the HTTP API's routes. Those of OpenAI's dialect are there without /v1 too, for
// clients whose base URL lacks it.
inline constexpr Route kRoutes[] = {
    {"GET", "/", answer_page, Access::page},
    {"GET", "/favicon.ico", answer_icon, Access::open},
    {"GET", "/health", answer_health, Access::open},
    {"GET", "/metrics", answer_metrics, Access::open},
    {"GET", "/version", answer_version},
    {"GET", "/v1/models", answer_models},
    {"GET", "/models", answer_models},
    {"GET", "/props", answer_props},
    {"GET", "/tokenizer_info", answer_tokenizer_info, Access::key, Work::grows},
    {"GET", "/openapi.json", answer_openapi, Access::key, Work::grows},
    {"GET", "/v1/models/*", answer_model},
    {"GET", "/models/*", answer_model},
    {"POST", "/v1/completions", answer_completions, Access::key, Work::grows},
    {"POST", "/completions", answer_completions, Access::key, Work::grows},
    {"POST", "/v1/chat/completions", answer_chat_completions, Access::key, Work::grows},
    {"POST", "/chat/completions", answer_chat_completions, Access::key, Work::grows},
    {"POST", "/v1/embeddings", answer_embeddings, Access::key, Work::grows},
    {"POST", "/embeddings", answer_embeddings, Access::key, Work::grows},
    {"POST", "/v1/score", answer_score, Access::key, Work::grows},
    {"POST", "/score", answer_score, Access::key, Work::grows},
    {"POST", "/v1/rerank", answer_rerank, Access::key, Work::grows},
    {"POST", "/v2/rerank", answer_rerank, Access::key, Work::grows},
    {"POST", "/rerank", answer_rerank, Access::key, Work::grows},
    {"POST", "/v1/messages", answer_messages, Access::key, Work::grows},
    {"POST", "/v1/messages/count_tokens", answer_count_tokens, Access::key, Work::grows},
    {"POST", "/v1/responses", answer_responses, Access::key, Work::grows},
    {"POST", "/v1/responses/input_tokens", answer_input_tokens, Access::key, Work::grows},
    {"GET", "/v1/responses/*", answer_stored_response},
    {"DELETE", "/v1/responses/*", answer_delete_response},
    {"POST", "/responses", answer_responses, Access::key, Work::grows},
    {"POST", "/responses/input_tokens", answer_input_tokens, Access::key, Work::grows},
    {"GET", "/responses/*", answer_stored_response},
    {"DELETE", "/responses/*", answer_delete_response},
    {"GET", "/v1/cache", answer_cache},
    {"POST", "/v1/cache/flush", answer_cache_flush, Access::admin},
    {"POST", "/v1/cache/export", answer_cache_export, Access::admin, Work::grows},
    {"POST", "/v1/cache/import", answer_cache_import, Access::admin, Work::grows},
    {"POST", "/v1/log-level", answer_log_level, Access::admin},
    {"POST", "/v1/load_lora_adapter", answer_load_adapter, Access::admin},
    {"POST", "/v1/unload_lora_adapter", answer_unload_adapter, Access::admin},
    {"POST", "/infill", answer_infill, Access::key, Work::grows},
    {"POST", "/apply-template", answer_apply_template, Access::key, Work::grows},
    {"POST", "/tokenize", answer_tokenize, Access::key, Work::grows},
    {"POST", "/detokenize", answer_detokenize, Access::key, Work::grows},
};

}  // namespace tessera
