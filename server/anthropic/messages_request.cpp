#include "server/anthropic/messages_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/status_macros.h"
#include "server/grammar/make_spec.h"
#include "server/openai/conversation_fields.h"
#include "server/openai/error.h"
#include "server/openai/kv_cache.h"
#include "server/openai/messages.h"
#include "server/openai/ordered_members.h"
#include "server/openai/request_options.h"
#include "server/request_limits.h"

namespace tessera {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr std::string_view kOrdered[] = {"tools", "output_config"};

// Reads the content of messages: a string, or a list of blocks.
class BlockReader {
 public:
  BlockReader(BodyFields& fields, std::string role) : fields_(fields), role_(std::move(role)) {}

  // Appends the messages of one body message: results of tools stand before its text.
  void read(const json& content, const std::string& place, std::vector<ChatMessage>& out) {
    message_.role = role_;
    if (content.is_string()) {
      message_.content = content.get<std::string>();
      any_text_ = true;
    } else if (!content.is_array() || content.empty()) {
      return fields_.refuse(place, "must be a string or a list of blocks");
    } else {
      for (size_t i = 0; i < content.size(); ++i) {
        read_block(content[i], fmt::format("{}[{}]", place, i), out);
      }
    }
    if (any_text_ || !message_.tool_calls.empty() || !message_.reasoning.empty()) {
      out.push_back(std::move(message_));
    }
  }

 private:
  void read_block(const json& block, const std::string& place, std::vector<ChatMessage>& out) {
    const json type = block.is_object() ? block.value("type", json()) : json();
    if (type == "text") {
      message_.content += any_text_ ? "\n" : "";
      message_.content += text_of(block, "text", place);
      any_text_ = true;
    } else if (type == "thinking" && role_ == "assistant") {
      message_.reasoning += text_of(block, "thinking", place);
    } else if (type == "tool_use" && role_ == "assistant") {
      const json input = block.value("input", json::object());
      if (!input.is_object()) {
        return fields_.refuse(place + ".input", "must be an object");
      }
      message_.tool_calls.push_back({.id = text_of(block, "id", place),
                                     .name = text_of(block, "name", place),
                                     .arguments = input.dump()});
    } else if (type == "tool_result" && role_ == "user") {
      read_result(block, place, out);
    } else {
      fields_.refuse(place, fmt::format("is a block of the type {}, which is not supported in a "
                                        "message of the role {}",
                                        excerpt(type), role_));
    }
  }

  void read_result(const json& block, const std::string& place, std::vector<ChatMessage>& out) {
    ChatMessage result{.role = "tool", .tool_call_id = text_of(block, "tool_use_id", place)};
    BodyFields fields(block, place + ".");
    if (fields.find("content") != nullptr) {
      read_text_parts(fields, "content", result.content);
    }
    fields_.adopt(fields.status());
    out.push_back(std::move(result));
  }

  std::string text_of(const json& block, const char* name, const std::string& place) {
    const json value = block.value(name, json());
    if (!value.is_string()) {
      fields_.refuse(place + "." + name, "must be a string");
      return {};
    }
    return value.get<std::string>();
  }

  BodyFields& fields_;
  const std::string role_;
  ChatMessage message_;
  bool any_text_ = false;
};

void read_messages(BodyFields& fields, Conversation& out) {
  if (fields.find("system") != nullptr) {
    ChatMessage system{.role = "system"};
    read_text_parts(fields, "system", system.content);
    out.messages.push_back(std::move(system));
  }
  const json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return fields.refuse("messages", "must be a list of at least one message");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    const json& message = (*messages)[i];
    const std::string place = fmt::format("messages[{}]", i);
    const json role = message.is_object() ? message.value("role", json()) : json();
    if (role != "user" && role != "assistant") {
      return fields.refuse(place + ".role", "must be user or assistant");
    }
    BlockReader reader(fields, role.get<std::string>());
    reader.read(message.value("content", json()), place + ".content", out.messages);
  }
}

// A tool in OpenAI's shape, which templates expect.
Ordered openai_tool(const Ordered& tool) {
  Ordered function = {{"name", tool.at("name")}};
  if (tool.contains("description")) {
    function["description"] = tool.at("description");
  }
  function["parameters"] = tool.at("input_schema");
  return {{"type", "function"}, {"function", std::move(function)}};
}

void read_tools(BodyFields& fields, const Ordered& ordered, ToolUse& use, Conversation& out) {
  const json* given = fields.find("tools");
  if (given == nullptr) {
    return;
  }
  if (!given->is_array()) {
    return fields.refuse("tools", "must be a list");
  }
  size_t i = 0;
  for (const Ordered& tool : ordered.at("tools")) {
    const std::string place = fmt::format("tools[{}]", i++);
    const Ordered type = tool.is_object() ? tool.value("type", Ordered("custom")) : Ordered();
    if (type != "custom") {
      return fields.refuse(place,
                           "must be an object of the type custom: this server has no tools "
                           "of its own");
    }
    if (!tool.contains("name") || !tool.at("name").is_string() ||
        !is_tool_name(tool.at("name").get_ref<const std::string&>())) {
      return fields.refuse(place + ".name", "must be 1 to 128 letters, digits, '_', '-' or '.'");
    }
    if (!tool.contains("input_schema") || !tool.at("input_schema").is_object()) {
      return fields.refuse(place + ".input_schema", "must be a JSON schema, an object");
    }
    use.tools.push_back({.name = tool.at("name").get<std::string>(),
                         .parameters = tool.at("input_schema"),
                         .strict = tool.value("strict", Ordered()) == true});
    out.tools.push_back(openai_tool(tool).dump());
  }
}

void read_messages_tool_choice(BodyFields& fields, ToolUse& use) {
  using Choice = ToolUse::Choice;
  const json* given = fields.find("tool_choice");
  if (given == nullptr) {
    return;
  }
  const json type = given->is_object() ? given->value("type", json()) : json();
  if (type == "any" || type == "tool") {
    use.choice = Choice::required;
  } else if (type == "none") {
    use.choice = Choice::none;
  } else if (type != "auto") {
    return fields.refuse("tool_choice.type", "must be auto, any, tool or none");
  }
  use.parallel = given->value("disable_parallel_tool_use", json()) != true;
  if (type == "tool") {
    const json name = given->value("name", json());
    use.only = name.is_string() ? name.get<std::string>() : "";
  }
  const bool known = std::any_of(use.tools.begin(), use.tools.end(), [&](const Tool& tool) {
    return use.only.empty() || tool.name == use.only;
  });
  if (use.choice == Choice::required && (!known || (type == "tool" && use.only.empty()))) {
    fields.refuse("tool_choice", "requires a call of a tool that is not in tools");
  }
}

// Reads output_config: a schema of the answer, and how much the model thinks.
void read_output(BodyFields& fields, const Ordered& ordered, GenerateRequest* each,
                 Conversation& out) {
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
    out.variables = Ordered{{"reasoning_effort", effort}}.dump();
  }
  if (const json* format = inner.find("format"); format != nullptr) {
    const std::string field = "output_config.format.schema";
    if (!format->is_object() || format->value("type", json()) != "json_schema" ||
        !format->contains("schema")) {
      inner.refuse("format", "must be an object with the type json_schema and a schema");
    } else if (each != nullptr) {
      absl::StatusOr<GrammarSpec> spec =
          schema_spec(ordered.at("output_config").at("format").at("schema"), field);
      if (spec.ok()) {
        each->grammar = *std::move(spec);
        each->grammar->text_alone = true;
      } else {
        fields.refuse(field, std::string(spec.status().message()));
      }
    }
  }
  inner.refuse_unknown();
  fields.adopt(inner.status());
}

// Reads thinking: whether the template lets the model think.
void read_thinking(BodyFields& fields, Conversation& out) {
  const json* given = fields.find("thinking");
  if (given == nullptr) {
    return;
  }
  const json type = given->is_object() ? given->value("type", json()) : json();
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return fields.refuse("thinking.type", "must be enabled, disabled or adaptive");
  }
  Ordered variables = out.variables.empty() ? Ordered::object() : Ordered::parse(out.variables);
  variables["enable_thinking"] = type != "disabled";
  out.variables = variables.dump();
}

// Reads the fields of both routes. A last message of the assistant is continued. `each`: takes the
// grammar of the answer; may be null.
absl::StatusOr<Conversation> read_conversation(BodyFields& fields, std::string_view body,
                                               std::string& model, ToolUse& use,
                                               PromptOptions& options, GenerateRequest* each) {
  Ordered ordered = Ordered::object();
  if (fields.find("tools") != nullptr || fields.find("output_config") != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(ordered, ordered_members(body, kOrdered));
  }
  Conversation out;
  fields.text("model", model);
  read_messages(fields, out);
  read_tools(fields, ordered, use, out);
  read_messages_tool_choice(fields, use);
  read_output(fields, ordered, each, out);
  read_thinking(fields, out);
  TESSERA_RETURN_IF_ERROR(fields.status());
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
  std::string tier;
  fields.text("service_tier", tier);
  fields.find("cache_control");  // prefixes are cached without asking
  fields.find("context_management");
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
                                             request.each.prompt_options, &request.each));
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  request.prompts.emplace_back(std::move(conversation));
  return request;
}

absl::StatusOr<TokenizeRequest> parse_count_tokens_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  TokenizeRequest request;
  BodyFields fields(object);
  pass_over(fields);
  GenerateRequest each;
  TESSERA_ASSIGN_OR_RETURN(
      request.prompt,
      read_conversation(fields, body, request.model, request.tools, request.options, &each));
  request.grammar = std::move(each.grammar);
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  return request;
}

}  // namespace tessera
