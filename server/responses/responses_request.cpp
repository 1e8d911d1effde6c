#include "server/responses/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "server/dialect/conversation_fields.h"
#include "server/dialect/kv_cache.h"
#include "server/dialect/request_options.h"
#include "server/dialect/retention.h"
#include "server/grammar/make_spec.h"
#include "server/json/ordered_members.h"
#include "server/request/request_limits.h"
#include "server/responses/input_items.h"
#include "server/responses/response_tools.h"

namespace tessera {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr int32_t kMaxTopLogprobs = 20;  // as OpenAI

// Reads text.format: the constraint of the answer.
void read_format(BodyFields& inner, const Ordered& ordered, GenerateRequest& out) {
  const json* format = inner.find("format");
  if (format == nullptr) {
    return;
  }
  const json type = format->is_object() ? format->value("type", json()) : json();
  if (type == "json_object") {
    out.grammar = GrammarSpec{GrammarSpec::Kind::json, "object", "text.format"};
  } else if (type == "json_schema") {
    const Ordered& given = ordered.at("text").at("format");
    absl::StatusOr<GrammarSpec> spec = given.contains("schema")
                                           ? schema_spec(given.at("schema"), "text.format.schema")
                                           : absl::InvalidArgumentError("is missing");
    if (spec.ok()) {
      out.grammar = *std::move(spec);
    } else {
      inner.refuse("format.schema", std::string(spec.status().message()));
    }
  } else if (type != "text") {
    inner.refuse("format.type",
                 fmt::format("must be text, json_object or json_schema, not {}", excerpt(type)));
  }
  if (out.grammar.has_value()) {
    out.grammar->text_alone = true;
  }
}

// Reads an object of the body. Returns: null if there is none.
const json* object_field(BodyFields& fields, std::string_view name) {
  const json* given = fields.find(name);
  if (given != nullptr && !given->is_object()) {
    fields.refuse(name, "must be an object");
    return nullptr;
  }
  return given;
}

// Refuses a field whose value is none of these.
void expect_one_of(BodyFields& fields, std::string_view name, std::initializer_list<json> allowed) {
  const json* given = fields.find(name);
  if (given != nullptr && std::find(allowed.begin(), allowed.end(), *given) == allowed.end()) {
    fields.refuse(name, fmt::format("{} is not supported by this server", excerpt(*given)),
                  "unsupported_parameter");
  }
}

void read_text_config(BodyFields& fields, const Ordered& ordered, GenerateRequest& out) {
  if (const json* given = object_field(fields, "text"); given != nullptr) {
    BodyFields inner(*given, "text.");
    read_format(inner, ordered, out);
    expect_one_of(inner, "verbosity", {"low", "medium", "high"});
    inner.refuse_unknown();
    fields.adopt(inner.status());
  }
  if (out.grammar && out.ignore_eos) {
    fields.refuse("ignore_eos", "cannot be combined with a grammar, which ends the text");
  }
}

void read_reasoning(BodyFields& fields, Conversation& out) {
  if (const json* given = object_field(fields, "reasoning"); given != nullptr) {
    BodyFields inner(*given, "reasoning.");
    Ordered variables = Ordered::object();
    read_effort(inner, "effort", variables);
    for (const char* summary : {"summary", "generate_summary"}) {  // thoughts are shown as text
      expect_one_of(inner, summary, {"none", "auto", "concise", "detailed"});
    }
    inner.find("context");  // which thoughts of earlier turns are read again
    inner.refuse_unknown();
    fields.adopt(inner.status());
    out.variables = variables.empty() ? "" : variables.dump();
  }
}

// Reads include and top_logprobs.
void read_shown(BodyFields& fields, CompletionRequest& out) {
  int32_t top = 0;
  fields.integer({"top_logprobs", {.min = 0, .max = kMaxTopLogprobs}}, top);
  bool logprobs = false;
  std::vector<std::string> include;
  fields.texts("include", include);
  for (const std::string& one : include) {
    if (one == "message.output_text.logprobs") {
      logprobs = true;
    } else if (one != "reasoning.encrypted_content") {  // thoughts are shown as text anyway
      fields.refuse("include", fmt::format("asks for {}, which this server does not have", one));
    }
  }
  if (out.each.sampling.prompt_logprobs) {
    fields.refuse("prompt_logprobs", "is not shown in this dialect");
  }
  if (logprobs) {
    out.logprobs = out.each.sampling.top_logprobs = top;
  } else if (top > 0) {
    fields.refuse("top_logprobs", "is only allowed with message.output_text.logprobs in include");
  }
}

void read_metadata(BodyFields& fields) {
  const json* given = object_field(fields, "metadata");
  if (given == nullptr) {
    return;
  }
  const bool texts = std::all_of(given->begin(), given->end(), [](const json& one) {
    return one.is_string() && one.get_ref<const std::string&>().size() <= 512;
  });
  if (given->size() > 16 || !texts) {
    fields.refuse("metadata", "must be an object of at most 16 texts of at most 512 bytes");
  }
}

void read_stream(BodyFields& fields, CompletionRequest& out) {
  fields.boolean("stream", out.stream);
  if (const json* given = object_field(fields, "stream_options"); given != nullptr) {
    BodyFields inner(*given, "stream_options.");
    bool padding = false;  // of events, which are not padded here
    inner.boolean("include_obfuscation", padding);
    inner.refuse_unknown();
    fields.adopt(inner.status());
  }
}

// Reads hints, and fields whose features are missing here, except for values that ask for nothing.
void refuse_missing(BodyFields& fields) {
  std::string hint;
  for (const char* harmless : {"user", "safety_identifier", "service_tier"}) {
    fields.text(harmless, hint);
  }
  object_field(fields, "client_metadata");
  object_field(fields, "prompt_cache_options");
  int32_t calls = 0;
  fields.integer({"max_tool_calls", {.min = 0}}, calls);  // of tools that the server runs
  expect_one_of(fields, "background", {false});
  for (const char* missing : {"conversation", "prompt", "moderation"}) {
    expect_one_of(fields, missing, {nullptr});
  }
  if (const json* given = fields.find("context_management"); given != nullptr && !given->empty()) {
    fields.warn("context_management", "is left out: see truncation");
  }
}

void read_state(BodyFields& fields, ResponsesRequest& out) {
  fields.text("instructions", out.instructions);
  fields.text("previous_response_id", out.previous);
  fields.boolean("store", out.store);
  std::string truncation = "disabled";
  fields.text("truncation", truncation);
  if (truncation != "disabled" && truncation != "auto") {
    fields.refuse("truncation", "must be disabled or auto");
  }
  out.truncate = truncation == "auto";
}

void read_limits(BodyFields& fields, GenerateRequest& out) {
  constexpr OptionRange kAnswer{1};
  if (fields.find("max_output_tokens") != nullptr) {
    fields.integer({"max_output_tokens", kAnswer}, out.max_tokens.emplace(0));
  }
  fields.texts("stop", out.stop);
  if (const std::optional<std::string> error = stop_error(out.stop, kStopLimits)) {
    fields.refuse("stop", *error);
  }
}

// Fields that an answer repeats: as they were sent, or their defaults.
Ordered repeated_fields(const json& object, const Ordered& ordered, const ResponsesRequest& made) {
  const auto sent = [&](const char* name, const json& otherwise) -> Ordered {
    const auto at = object.find(name);
    return Ordered(at == object.end() || at->is_null() ? otherwise : *at);
  };
  Ordered text = {{"format", {{"type", "text"}}}};
  if (ordered.contains("text") && ordered.at("text").is_object()) {
    text.update(ordered.at("text"));
  }
  const SamplingParams& sampling = made.completion.each.sampling;
  return {{"instructions", sent("instructions", nullptr)},
          {"max_output_tokens", sent("max_output_tokens", nullptr)},
          {"max_tool_calls", sent("max_tool_calls", nullptr)},
          {"metadata", sent("metadata", json::object())},
          {"parallel_tool_calls", made.completion.tools.parallel},
          {"previous_response_id", sent("previous_response_id", nullptr)},
          {"reasoning", sent("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"service_tier", "default"},
          {"store", made.store},
          {"temperature", sent("temperature", sampling.temperature)},
          {"text", text},
          {"tool_choice", sent("tool_choice", "auto")},
          {"tools", ordered.contains("tools") ? ordered.at("tools") : Ordered::array()},
          {"top_logprobs", sampling.top_logprobs.value_or(0)},
          {"top_p", sent("top_p", sampling.top_p)},
          {"truncation", made.truncate ? "auto" : "disabled"},
          {"user", sent("user", nullptr)}};
}

}  // namespace

absl::StatusOr<ResponsesRequest> parse_responses_request(std::string_view body) {
  constexpr std::string_view kOrdered[] = {"tools", "text"};
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  Ordered ordered = Ordered::object();
  if (object.contains("tools") || object.contains("text")) {
    TESSERA_ASSIGN_OR_RETURN(ordered, ordered_members(body, kOrdered));
  }
  ResponsesRequest request;
  CompletionRequest& out = request.completion;
  out.chat = true;
  BodyFields fields(object);
  fields.text("model", out.model);
  read_options(fields, out.each);
  read_kv_cache(fields, out.each.kv);
  read_retention(fields, out.each);
  read_limits(fields, out.each);
  read_stream(fields, out);
  read_state(fields, request);
  Conversation conversation;
  out.tools = read_response_tools(fields, ordered, conversation.tools);
  read_text_config(fields, ordered, out.each);
  read_reasoning(fields, conversation);
  read_shown(fields, out);
  read_metadata(fields);
  refuse_missing(fields);
  conversation.messages = read_input(fields);
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  request.repeated = repeated_fields(object, ordered, request);
  out.warnings = fields.warnings();
  out.prompts.emplace_back(std::move(conversation));
  return request;
}

}  // namespace tessera
