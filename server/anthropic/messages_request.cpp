#include "server/anthropic/messages_request.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/anthropic/message_blocks.h"
#include "server/anthropic/message_tools.h"
#include "server/dialect/cache_control.h"
#include "server/dialect/conversation_fields.h"
#include "server/dialect/kv_cache.h"
#include "server/dialect/request_options.h"
#include "server/grammar/make_spec.h"
#include "server/json/ordered_members.h"
#include "server/request/request_limits.h"

namespace tessera {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr std::string_view kOrdered[] = {"tools", "output_config", "output_format"};

// Reads a schema of the answer, which has this name in the body, as the grammar of `each`.
void read_schema(BodyFields& fields, const json& format, const Ordered& ordered,
                 const std::string& name, GenerateRequest& each) {
  if (!format.is_object() || format.value("type", json()) != "json_schema" ||
      !format.contains("schema")) {
    return fields.refuse(name, "must be an object with the type json_schema and a schema");
  }
  const std::string field = name + ".schema";
  absl::StatusOr<GrammarSpec> spec = schema_spec(ordered.at("schema"), field);
  if (!spec.ok()) {
    return fields.refuse(field, std::string(spec.status().message()));
  }
  each.grammar = *std::move(spec);
  each.grammar->text_alone = true;
}

// Reads output_config: a schema of the answer, and how much the model thinks. A schema may stand in
// output_format too, as in older clients.
void read_output(BodyFields& fields, const Ordered& ordered, GenerateRequest& each,
                 Ordered& variables) {
  if (const json* format = fields.find("output_format"); format != nullptr) {
    read_schema(fields, *format, ordered.at("output_format"), "output_format", each);
  }
  const json* given = fields.find("output_config");
  if (given == nullptr) {
    return;
  }
  if (!given->is_object()) {
    return fields.refuse("output_config", "must be an object");
  }
  BodyFields inner(*given, "output_config.");
  std::string effort;
  inner.text("effort", effort);
  if (!effort.empty()) {
    variables.emplace("reasoning_effort", effort);
  }
  inner.find("task_budget");  // a hint of the length of a whole task
  if (const json* format = inner.find("format"); format != nullptr) {
    read_schema(fields, *format, ordered.at("output_config").at("format"), "output_config.format",
                each);
  }
  inner.refuse_unknown();
  fields.adopt(inner.status());
}

// cache_control beside the messages marks the end of the last one.
void read_whole_mark(BodyFields& fields, const Conversation& out, CacheControls& controls) {
  if (const json* control = fields.find("cache_control"); control != nullptr) {
    if (const auto ttl = controls.read(*control, "cache_control")) {
      controls.mark({.messages = out.messages.size(), .ttl = *ttl});
    }
  }
}

// Reads the fields of both routes. A last message of the assistant is continued. `each`: takes the
// grammar of the answer.
absl::StatusOr<Conversation> read_conversation(BodyFields& fields, std::string_view body,
                                               std::string& model, ToolUse& use,
                                               PromptOptions& options, GenerateRequest& each) {
  Ordered ordered = Ordered::object();
  if (std::ranges::any_of(kOrdered,
                          [&](std::string_view name) { return fields.find(name) != nullptr; })) {
    TESSERA_ASSIGN_OR_RETURN(ordered, ordered_members(body, kOrdered));
  }
  Conversation out;
  fields.text("model", model);
  MessageTools tools = read_message_tools(fields, ordered);
  CacheControls controls(fields);
  read_message_blocks(fields, body, tools, out, controls);
  read_whole_mark(fields, out, controls);
  options.marks = controls.take();
  read_message_choice(fields, tools);
  Ordered variables = Ordered::object();
  read_output(fields, ordered, each, variables);
  read_thinking(fields, variables);
  TESSERA_RETURN_IF_ERROR(fields.status());
  out.variables = variables.empty() ? "" : variables.dump();
  out.tools = std::move(tools.texts);
  use = std::move(tools.use);
  if (out.messages.empty()) {  // all their blocks are of tools that Anthropic runs, and left out
    fields.refuse("messages", "have nothing that this server shows to the model");
    return fields.status();
  }
  const ChatMessage& last = out.messages.back();
  out.continue_final = last.role == "assistant" && last.tool_calls.empty();
  options.add_generation_prompt = !out.continue_final;
  return out;
}

void read_stop_sequences(BodyFields& fields, GenerateRequest& out) {
  fields.texts("stop_sequences", out.stop);
  if (const std::optional<std::string> error = stop_error(out.stop, kStopLimits)) {
    fields.refuse("stop_sequences", *error);
  }
}

// Reads fields that change nothing here.
void pass_over(BodyFields& fields) {
  fields.find("metadata");  // names the user
  std::string text;
  for (const char* hint : {"service_tier", "inference_geo", "speed", "anthropic_version"}) {
    fields.text(hint, text);
  }
  std::vector<std::string> betas;
  fields.texts("betas", betas);
  fields.find("context_management");  // clears old results of tools, which may stay
  for (const char* run_there : {"mcp_servers", "container"}) {
    if (const json* given = fields.find(run_there); given != nullptr && !given->empty()) {
      fields.warn(run_there, "is left out: this server runs no tools");
    }
  }
}

}  // namespace

absl::StatusOr<CompletionRequest> parse_messages_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  CompletionRequest request;
  request.chat = true;
  BodyFields fields(object);
  read_options(fields, request.each);
  read_kv_cache(fields, request.each.kv);
  read_stop_sequences(fields, request.each);
  constexpr OptionRange kCompletion{1};
  fields.integer({"max_tokens", kCompletion}, request.each.max_tokens.emplace(0));
  if (fields.find("max_tokens") == nullptr) {
    fields.refuse("max_tokens", "is missing");
  }
  fields.boolean("stream", request.stream);
  request.include_usage = true;
  pass_over(fields);
  TESSERA_ASSIGN_OR_RETURN(Conversation conversation,
                           read_conversation(fields, body, request.model, request.tools,
                                             request.each.prompt_options, request.each));
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  request.warnings = fields.warnings();
  request.prompts.emplace_back(std::move(conversation));
  return request;
}

absl::StatusOr<TokenizeRequest> parse_count_tokens_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  TokenizeRequest request;
  BodyFields fields(object);
  pass_over(fields);
  GenerateRequest each;
  TESSERA_ASSIGN_OR_RETURN(request.prompt, read_conversation(fields, body, request.model,
                                                             request.tools, request.options, each));
  request.grammar = std::move(each.grammar);
  request.options.marks.clear();  // nothing is kept
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  request.warnings = fields.warnings();
  return request;
}

}  // namespace tessera
