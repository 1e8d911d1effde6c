#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "files/gguf/gguf_model.h"
#include "text/gguf_tokenizer.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/json_value.h"
#include "text/jinja/parser.h"
#include "text/json_file.h"
#include "text/message_value.h"
#include "text/plain_tools.h"
#include "text/template_probe.h"

namespace tessera {
namespace {

using jinja::None;
using jinja::Text;
using jinja::Value;

constexpr size_t kMaxTemplateBytes = size_t{1} << 20U;

absl::Status named(const absl::Status& status) {
  return absl::Status(status.code(), "chat template, " + std::string(status.message()));
}

std::vector<TextSegment> segments_of(const Text& text) {
  std::vector<TextSegment> segments;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    segments.push_back({text.bytes().substr(begin, run.end - begin), !run.from_message});
    begin = run.end;
  }
  return segments;
}

bool is_standard_role(std::string_view role) {
  return role == "system" || role == "user" || role == "assistant" || role == "tool";
}

std::string_view stripped(std::string_view text, bool left, bool right) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = left ? std::min(text.find_first_not_of(kBlanks), text.size()) : 0;
  text.remove_prefix(begin);
  return right ? text.substr(0, text.find_last_not_of(kBlanks) + 1) : text;
}

// A template that does not know a role may print nothing of its messages.
absl::Status check_roles(const Conversation& conversation, const Text& prompt) {
  size_t at = 0;  // templates print messages in their order
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const ChatMessage& message = conversation.messages[i];
    const std::string content = repair_utf8(stripped(message.content, true, true));
    if (is_standard_role(message.role)) {
      continue;
    }
    at = prompt.bytes().find(content, at);
    if (at == std::string::npos) {
      return absl::InvalidArgumentError("messages[" + std::to_string(i) +
                                        "].role: the model's chat template does not print messages "
                                        "of the role " +
                                        message.role.substr(0, 64));
    }
  }
  return absl::OkStatus();
}

// Returns: the prompt up to the end of the last message, without the template's text after it.
absl::StatusOr<Text> cut_after_last(const Conversation& conversation, const Text& prompt) {
  const std::string content = repair_utf8(conversation.messages.back().content);
  for (const bool right : {false, true}) {  // templates may strip the right end
    const std::string_view wanted = stripped(content, true, right);
    const size_t at = prompt.bytes().rfind(wanted);
    if (!wanted.empty() && at != std::string::npos) {
      return prompt.slice(0, at + wanted.size());
    }
  }
  return absl::InvalidArgumentError(
      "continue_final_message: the model's chat template does not print the last message as it is");
}

class JinjaTemplate final : public ChatTemplate {
 public:
  JinjaTemplate(jinja::Statements statements, bool knows_developer)
      : statements_(std::move(statements)), knows_developer_(knows_developer) {
    traits_ = probe_template([this](const Conversation& conversation,
                                    MessageStyle style) -> absl::StatusOr<std::string> {
      Variables variables;
      variables.max_work = size_t{1} << 18U;
      TESSERA_ASSIGN_OR_RETURN(const Text text, print(conversation, style, variables));
      return text.bytes();
    });
  }

  absl::StatusOr<std::vector<TextSegment>> render(const Conversation& conversation,
                                                  const Variables& variables) const override {
    Conversation printed = with_plain_tools(conversation, traits_.abilities);
    for (ChatMessage& message : printed.messages) {
      if (message.role == "developer" && !knows_developer_) {
        message.role = "system";
      }
    }
    TESSERA_ASSIGN_OR_RETURN(Text text, print(printed, traits_.style, variables));
    TESSERA_RETURN_IF_ERROR(check_roles(printed, text));
    if (printed.continue_final && !printed.messages.empty()) {
      TESSERA_ASSIGN_OR_RETURN(text, cut_after_last(printed, text));
    }
    return segments_of(text);
  }

 private:
  absl::StatusOr<Text> print(const Conversation& conversation, MessageStyle style,
                             const Variables& variables) const {
    std::vector<Value> list;
    for (const ChatMessage& message : conversation.messages) {
      TESSERA_ASSIGN_OR_RETURN(Value value, message_value(message, style));
      list.push_back(std::move(value));
    }
    TESSERA_ASSIGN_OR_RETURN(Value all, Value::list(std::move(list)));
    TESSERA_ASSIGN_OR_RETURN(Value tools, tools_value(conversation));
    jinja::Context context;
    context.unix_seconds = variables.unix_seconds.value_or(std::time(nullptr));
    context.max_work = variables.max_work;
    context.variables = {
        {"messages", std::move(all)},
        {"bos_token", Value(Text(variables.bos_token))},
        {"eos_token", Value(Text(variables.eos_token))},
        {"add_generation_prompt", Value(variables.add_generation_prompt)},
        {"tools", std::move(tools)},
        {"documents", Value(None{})},
    };
    TESSERA_RETURN_IF_ERROR(add_variables(conversation.variables, context));
    return jinja::render(statements_, context);
  }

  static absl::StatusOr<Value> tools_value(const Conversation& conversation) {
    if (conversation.tools.empty()) {
      return Value(None{});
    }
    std::vector<Value> list;
    for (const std::string& tool : conversation.tools) {
      TESSERA_ASSIGN_OR_RETURN(Value value, parse_json_value(tool));
      list.push_back(std::move(value));
    }
    return Value::list(std::move(list));
  }

  static absl::Status add_variables(const std::string& json, jinja::Context& context) {
    if (json.empty()) {
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(const Value object, parse_json_value(json));
    if (object.dict() == nullptr) {
      return absl::InvalidArgumentError("the template's variables are not a JSON object");
    }
    for (const auto& [name, value] : object.dict()->items) {
      for (const auto& [taken, unused] : context.variables) {
        if (taken == name.bytes()) {
          return absl::InvalidArgumentError("the template's variable " + taken +
                                            " cannot be set by a request");
        }
      }
      context.variables.emplace_back(name.bytes(), value);
    }
    return absl::OkStatus();
  }

  const jinja::Statements statements_;
  const bool knows_developer_;
  TemplateTraits traits_;
};

// As transformers chooses where a model has several templates.
class ToolAwareTemplate final : public ChatTemplate {
 public:
  ToolAwareTemplate(std::unique_ptr<ChatTemplate> plain, std::unique_ptr<ChatTemplate> tool_use)
      : plain_(std::move(plain)), tool_use_(std::move(tool_use)) {}

  absl::StatusOr<std::vector<TextSegment>> render(const Conversation& conversation,
                                                  const Variables& variables) const override {
    return (conversation.tools.empty() ? plain_ : tool_use_)->render(conversation, variables);
  }

 private:
  const std::unique_ptr<ChatTemplate> plain_;
  const std::unique_ptr<ChatTemplate> tool_use_;
};

// Returns: the text of this name in a list of templates.
std::optional<std::string> listed_template(const nlohmann::json& list, std::string_view name) {
  if (!list.is_array()) return std::nullopt;
  for (const nlohmann::json& item : list) {
    const nlohmann::json& text = json_member(item, "template");
    if (json_member(item, "name") == name && text.is_string()) return text.get<std::string>();
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<std::string>> template_of_config(const nlohmann::json& config) {
  const nlohmann::json& value = json_member(config, "chat_template");
  if (value.is_null()) return std::nullopt;
  if (value.is_string()) return value.get<std::string>();
  if (std::optional<std::string> text = listed_template(value, "default")) return text;
  return absl::InvalidArgumentError(
      "\"chat_template\" of tokenizer_config.json is neither a string nor a list with a template "
      "named \"default\"");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError("chat template, line 1: more than " +
                                      std::to_string(kMaxTemplateBytes) + " bytes");
  }
  if (!is_valid_utf8(source)) {
    return absl::InvalidArgumentError("chat template, line 1: not UTF-8");
  }
  absl::StatusOr<jinja::Statements> statements = jinja::parse_template(source);
  if (!statements.ok()) return named(statements.status());
  return std::make_unique<JinjaTemplate>(std::move(*statements),
                                         source.find("developer") != std::string_view::npos);
}

absl::StatusOr<std::optional<std::string>> find_chat_template(const std::filesystem::path& model) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, find_gguf(model));
  if (gguf) {
    TESSERA_ASSIGN_OR_RETURN(const GgufModel opened, GgufModel::open(*gguf));
    return gguf_chat_template(opened);
  }
  std::error_code error;
  const std::filesystem::path file = model / "chat_template.jinja";
  if (std::filesystem::exists(file, error)) return read_text_file(file);
  const std::filesystem::path config_file = model / "tokenizer_config.json";
  if (!std::filesystem::exists(config_file, error)) return std::nullopt;
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json config, read_json_object(config_file));
  return template_of_config(config);
}

absl::StatusOr<std::optional<std::string>> find_tool_template(const std::filesystem::path& model) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, find_gguf(model));
  if (gguf) {
    TESSERA_ASSIGN_OR_RETURN(const GgufModel opened, GgufModel::open(*gguf));
    return gguf_chat_template(opened, ".tool_use");
  }
  std::error_code error;
  const std::filesystem::path file = model / "additional_chat_templates" / "tool_use.jinja";
  if (std::filesystem::exists(file, error)) return read_text_file(file);
  const std::filesystem::path config_file = model / "tokenizer_config.json";
  if (std::filesystem::exists(model / "chat_template.jinja", error) ||
      !std::filesystem::exists(config_file, error)) {
    return std::nullopt;
  }
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json config, read_json_object(config_file));
  return listed_template(json_member(config, "chat_template"), "tool_use");
}

std::unique_ptr<ChatTemplate> with_tool_template(std::unique_ptr<ChatTemplate> plain,
                                                 std::unique_ptr<ChatTemplate> tool_use) {
  return std::make_unique<ToolAwareTemplate>(std::move(plain), std::move(tool_use));
}

}  // namespace tessera
