#include "server/chat/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/grammar/schema.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxBytes = 512 << 10;
constexpr int kWhitespace = 4;  // at most between two parts of JSON, so that none is endless

// Returns: true if a schema restricts its values.
bool restricts_values(const Json& schema) {
  constexpr const char* kKeys[] = {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"};
  return !schema.is_object() || std::any_of(std::begin(kKeys), std::end(kKeys),
                                            [&](const char* key) { return schema.contains(key); });
}

// left_out: receives the keywords of a tool's schema that the grammar does not enforce
absl::StatusOr<Json> arguments_schema(const Tool& tool, std::vector<std::string>& left_out) {
  Json schema = tool.parameters.is_null() ? Json::object() : tool.parameters;
  if (!restricts_values(schema)) {
    schema["type"] = "object";
  }
  const std::string field = fmt::format("tools: {}.parameters", tool.name);
  if (!tool.strict) {
    const RelaxedSchema relaxed = relax_schema(schema);
    for (const std::string& message : relaxed.left_out) {
      left_out.push_back(fmt::format("{}: {}", field, message));
    }
    return Json::parse(relaxed.text);
  }
  const absl::StatusOr<std::string> prepared = prepare_schema(schema);
  if (prepared.ok()) {
    return Json::parse(*prepared);
  }
  return invalid_field(
      "tools", fmt::format("{} (strict): {}", field, std::string(prepared.status().message())));
}

// The grammar of a custom tool's input is written for a text in JSON.
absl::StatusOr<Json> arguments_content(const Tool& tool, const CallLayout& layout,
                                       std::vector<std::string>& left_out) {
  if (!tool.input_grammar.empty()) {
    if (layout.style == "json") {
      return Json{{"type", "grammar"}, {"grammar", tool.input_grammar}};
    }
    left_out.push_back(fmt::format(
        "tools: {}: its grammar binds no input, because this notation does not write JSON",
        tool.name));
  }
  TESSERA_ASSIGN_OR_RETURN(Json schema, arguments_schema(tool, left_out));
  return Json{{"type", "json_schema"},
              {"json_schema", std::move(schema)},
              {"style", layout.style},
              {"max_whitespace_cnt", kWhitespace}};
}

absl::StatusOr<Json> tag_of(const Tool& tool, const CallLayout& layout, std::string_view begin,
                            std::vector<std::string>& left_out) {
  TESSERA_ASSIGN_OR_RETURN(Json content, arguments_content(tool, layout, left_out));
  return Json{{"type", "tag"},
              {"begin", fmt::format("{}{}{}{}", begin, layout.before_name, tool.name,
                                    layout.before_arguments)},
              {"content", std::move(content)},
              {"end", layout.after}};
}

Json constant(std::string_view text) {
  return {{"type", "const_string"}, {"value", text}};
}

absl::StatusOr<Json> forced_calls(const ToolUse& use, const CallLayout& layout,
                                  std::vector<std::string>& left_out) {
  Json tags = Json::array();
  for (const Tool& tool : use.tools) {
    if (use.only.empty() || use.only == tool.name) {
      TESSERA_ASSIGN_OR_RETURN(Json tag, tag_of(tool, layout, "", left_out));
      tags.push_back(std::move(tag));
    }
  }
  const Json calls = {{"type", "tags_with_separator"},
                      {"tags", std::move(tags)},
                      {"separator", layout.separator},
                      {"at_least_one", true},
                      {"stop_after_first", !use.parallel || !use.only.empty()}};
  if (layout.begin.empty() && layout.end.empty()) {
    return calls;
  }
  return Json{{"type", "sequence"},
              {"elements", Json::array({constant(layout.begin), calls, constant(layout.end)})}};
}

absl::StatusOr<std::optional<GrammarSpec>> spec_of(Json tree) {
  std::string text = Json{{"type", "structural_tag"}, {"format", std::move(tree)}}.dump();
  if (text.size() > kMaxBytes) {
    return invalid_field("tools", fmt::format("tools: their schemas have more than {} bytes, too "
                                              "many for a grammar",
                                              kMaxBytes));
  }
  return GrammarSpec{GrammarSpec::Kind::structural_tag, std::move(text), "tools"};
}

// Any text, in which calls of strict tools are as their schemas say.
absl::StatusOr<Json> free_calls(const ToolUse& use, const ToolFormat& format) {
  std::vector<std::string>
      left_out;  // of tools that are not strict: their free calls are not bound
  Json tags = Json::array();
  for (const Tool& tool : use.tools) {
    TESSERA_ASSIGN_OR_RETURN(Json tag, tag_of(tool, format.layout, format.layout.prompt, left_out));
    tags.push_back(std::move(tag));
  }
  return Json{{"type", "triggered_tags"},
              {"triggers", Json::array({format.trigger})},
              {"tags", std::move(tags)},
              {"at_least_one", false},
              {"stop_after_first", false}};
}

}  // namespace

absl::StatusOr<std::optional<GrammarSpec>> tool_grammar(const ToolUse& use,
                                                        const ToolFormat& format,
                                                        std::vector<std::string>& left_out) {
  const bool strict = std::any_of(use.tools.begin(), use.tools.end(), [](const Tool& tool) {
    return tool.strict || !tool.input_grammar.empty();
  });
  Json tree;
  if (use.choice == ToolUse::Choice::required) {
    TESSERA_ASSIGN_OR_RETURN(tree, forced_calls(use, format.layout, left_out));
  } else if (use.choice == ToolUse::Choice::automatic && strict && !format.trigger.empty()) {
    TESSERA_ASSIGN_OR_RETURN(tree, free_calls(use, format));
  } else {
    if (use.choice == ToolUse::Choice::automatic && strict) {
      left_out.push_back(
          fmt::format("tools: strict and grammars of custom tools bind calls only where "
                      "tool_choice requires one: "
                      "calls in the notation {} begin with a special token",
                      format.name));
    }
    return std::optional<GrammarSpec>();
  }
  return spec_of(std::move(tree));
}

absl::StatusOr<std::optional<GrammarSpec>> calls_or(const ToolUse& use, const ToolFormat& format,
                                                    const GrammarSpec& other,
                                                    std::vector<std::string>& left_out) {
  const bool json =
      other.kind == GrammarSpec::Kind::json || other.kind == GrammarSpec::Kind::json_schema;
  const bool plain = !format.trigger.empty() || format.layout.prompt.empty();
  if (!json || !plain) {
    return invalid_field(
        "tools",
        fmt::format("tools cannot be combined with {}, unless tool_choice is none", other.field));
  }
  TESSERA_ASSIGN_OR_RETURN(Json calls, forced_calls(use, format.layout, left_out));
  const Json schema = other.kind == GrammarSpec::Kind::json
                          ? Json{{"type", "object"}, {"additionalProperties", true}}
                          : Json::parse(other.text);
  Json elements = Json::array();
  elements.push_back(
      {{"type", "sequence"},
       {"elements", Json::array({constant(format.layout.prompt), std::move(calls)})}});
  if (format.layout.prompt.empty()) {
    elements.front() = elements.front().at("elements").at(1);
  }
  elements.push_back(
      {{"type", "json_schema"}, {"json_schema", schema}, {"max_whitespace_cnt", kWhitespace}});
  return spec_of({{"type", "or"}, {"elements", std::move(elements)}});
}

}  // namespace tessera
