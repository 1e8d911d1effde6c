#include "models/text/chat_template.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "models/gguf/model.h"
#include "models/status_macros.h"
#include "models/text/gguf_tokenizer.h"
#include "models/text/jinja/interpreter.h"
#include "models/text/jinja/parser.h"
#include "models/text/json_file.h"
#include "models/text/utf8.h"

namespace tessera {
namespace {

using jinja::Dict;
using jinja::None;
using jinja::Text;
using jinja::Value;

constexpr size_t kMaxTemplateBytes = size_t{1} << 20U;

absl::Status named(const absl::Status& status) {
  return absl::Status(status.code(), "chat template, " + std::string(status.message()));
}

// Roles of published templates, of which some make a special token: "<|user|>". Another role must
// not become one: "end" would end the turn.
constexpr std::array<std::string_view, 9> kRoles = {"assistant", "developer",   "function",
                                                    "ipython",   "observation", "system",
                                                    "tool",      "tool_call",   "user"};

bool is_known_role(std::string_view role) {
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
}

absl::StatusOr<Value> message_value(const ChatMessage& message) {
  Dict dict;
  dict.items.emplace_back(Text("role"),
                          Value(Text(repair_utf8(message.role), !is_known_role(message.role))));
  dict.items.emplace_back(Text("content"), Value(Text(repair_utf8(message.content), true)));
  return Value::dict(std::move(dict));
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

class JinjaTemplate final : public ChatTemplate {
 public:
  explicit JinjaTemplate(jinja::Statements statements) : statements_(std::move(statements)) {}

  absl::StatusOr<std::vector<TextSegment>> render(const std::vector<ChatMessage>& messages,
                                                  const Variables& variables) const override {
    std::vector<Value> list;
    for (const ChatMessage& message : messages) {
      TESSERA_ASSIGN_OR_RETURN(Value value, message_value(message));
      list.push_back(std::move(value));
    }
    TESSERA_ASSIGN_OR_RETURN(Value all, Value::list(std::move(list)));
    jinja::Context context;
    context.unix_seconds = variables.unix_seconds.value_or(std::time(nullptr));
    context.max_work = variables.max_work;
    context.variables = {
        {"messages", std::move(all)},
        {"bos_token", Value(Text(variables.bos_token))},
        {"eos_token", Value(Text(variables.eos_token))},
        {"add_generation_prompt", Value(variables.add_generation_prompt)},
        {"tools", Value(None{})},
        {"documents", Value(None{})},
    };
    TESSERA_ASSIGN_OR_RETURN(const Text text, jinja::render(statements_, context));
    return segments_of(text);
  }

 private:
  const jinja::Statements statements_;
};

absl::StatusOr<std::optional<std::string>> template_of_config(const nlohmann::json& config) {
  const nlohmann::json& value = json_member(config, "chat_template");
  if (value.is_null()) return std::nullopt;
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    for (const nlohmann::json& item : value) {
      const nlohmann::json& name = json_member(item, "name");
      const nlohmann::json& text = json_member(item, "template");
      if (name == "default" && text.is_string()) return text.get<std::string>();
    }
  }
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
  return std::make_unique<JinjaTemplate>(std::move(*statements));
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

}  // namespace tessera
