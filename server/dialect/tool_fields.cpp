#include "server/dialect/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/chat/custom_input.h"
#include "server/grammar/input_grammar.h"
#include "server/request/request_limits.h"

namespace tessera {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

Ordered member(const Ordered& object, const char* name) {
  return object.is_object() ? object.value(name, Ordered()) : Ordered();
}

std::string shown(const Ordered& function) {
  return Ordered{{"type", "function"}, {"function", function}}.dump();
}

std::string text_member(const Ordered& object, const char* name) {
  const Ordered value = member(object, name);
  return value.is_string() ? value.get<std::string>() : "";
}

// The description of a custom tool with its grammar, so that a model knows it beforehand.
std::string described(const Ordered& custom, const Ordered& grammar) {
  const std::string text = text_member(custom, "description");
  const std::string definition = text_member(grammar, "definition");
  return definition.empty()
             ? text
             : fmt::format("{}{}The input must match this {} grammar:\n{}", text,
                           text.empty() ? "" : "\n\n", text_member(grammar, "syntax"), definition);
}

void read_chat_tool(BodyFields& fields, const Ordered& value, const std::string& place,
                    ToolReader& reader) {
  const Ordered type = member(value, "type");
  if (!type.is_string()) {
    return fields.refuse(place, "must be an object with type \"function\"");
  }
  if (type != "function" && type != "custom") {
    return reader.leave_out(type, place);
  }
  const auto kind = type.get<std::string>();
  const Ordered inner = member(value, kind.c_str());
  const std::string inner_place = fmt::format("{}.{}", place, kind);
  if (!inner.is_object()) {
    return fields.refuse(inner_place, "must be an object");
  }
  if (type == "function") {
    reader.add_function(inner, inner_place);
  } else {
    reader.add_custom(inner, inner_place);
  }
}

// Returns: the name in {"type": "function", "function": {"name"}}, or of a custom tool.
json chosen_name(const json& given) {
  const json type = given.is_object() ? given.value("type", json()) : json();
  if (type != "function" && type != "custom") {
    return {};
  }
  const json inner = given.value(type.get<std::string>(), json());
  return inner.is_object() ? inner.value("name", json()) : json();
}

// {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}
// Returns: the mode, as the choice among the rest.
json read_allowed(BodyFields& fields, const json& given, ToolUse& out,
                  std::vector<std::string>& texts) {
  const json allowed = given.value("allowed_tools", json());
  const json tools = allowed.is_object() ? allowed.value("tools", json()) : json();
  if (!tools.is_array()) {
    fields.refuse("tool_choice.allowed_tools.tools", "must be a list of tools");
    return "auto";
  }
  std::vector<std::string> names;
  for (const json& tool : tools) {
    const json name = chosen_name(tool);
    names.push_back(name.is_string() ? name.get<std::string>() : "");
  }
  allow_tools(names, out, texts);
  return allowed.value("mode", json("auto"));
}

void read_tool_choice(BodyFields& fields, ToolUse& out, std::vector<std::string>& texts) {
  using Choice = ToolUse::Choice;
  const json* given = fields.find("tool_choice");
  if (given == nullptr) {
    return;
  }
  const bool allowed = given->is_object() && given->value("type", json()) == "allowed_tools";
  const json choice = allowed ? read_allowed(fields, *given, out, texts) : *given;
  if (choice == "auto") {
    return;
  }
  if (choice == "none") {
    out.choice = Choice::none;
    return;
  }
  out.choice = Choice::required;
  if (choice != "required") {
    const json name = chosen_name(choice);
    if (!name.is_string()) {
      fields.refuse("tool_choice",
                    fmt::format("must be none, auto, required, or an object with type \"function\" "
                                "and the function's name, not {}",
                                excerpt(*given)));
      return;
    }
    if (!require_tool(name, out)) {
      fields.refuse("tool_choice", fmt::format("names {}, which is not in tools", excerpt(name)));
      return;
    }
  }
  if (out.tools.empty()) {
    fields.refuse("tool_choice", "requires a call, but there are no tools that can be called");
  }
}

}  // namespace

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

bool ToolReader::read_name(const Ordered& tool, const std::string& place, const std::string& space,
                           Tool& out) {
  const Ordered name = member(tool, "name");
  if (!name.is_string() || !is_tool_name(name.get_ref<const std::string&>())) {
    fields_.refuse(place + ".name", "must be 1 to 128 letters, digits, '_', '-' or '.'");
    return false;
  }
  out.space = space;
  out.name = (space.empty() ? "" : space + ".") + name.get<std::string>();
  return true;
}

void ToolReader::add_function(const Ordered& function, const std::string& place,
                              const std::string& space) {
  Tool tool;
  if (!read_name(function, place, space, tool)) {
    return;
  }
  tool.parameters = member(function, "parameters");
  if (!tool.parameters.is_null() && !tool.parameters.is_object()) {
    return fields_.refuse(place + ".parameters", "must be a JSON schema, an object");
  }
  const Ordered strict = member(function, "strict");
  if (!strict.is_null() && !strict.is_boolean()) {
    return fields_.refuse(place + ".strict", "must be a boolean");
  }
  tool.strict = strict == true;
  Ordered printed = function;
  for (const char* unseen : {"type", "defer_loading", "cache_control", "allowed_callers"}) {
    printed.erase(unseen);
  }
  printed["name"] = tool.name;
  texts_.push_back(shown(printed));
  use_.tools.push_back(std::move(tool));
}

void ToolReader::add_custom(const Ordered& custom, const std::string& place,
                            const std::string& space) {
  Tool tool;
  tool.custom = true;
  if (!read_name(custom, place, space, tool)) {
    return;
  }
  const Ordered format = member(custom, "format");
  const Ordered type = member(format, "type");
  if (!format.is_null() && type != "text" && type != "grammar") {
    return fields_.refuse(place + ".format.type", "must be text or grammar");
  }
  const std::string input(kCustomInput);
  tool.parameters = {{"type", "object"},
                     {"properties", {{input, {{"type", "string"}}}}},
                     {"required", Ordered::array({input})}};
  const Ordered nested = member(format, "grammar");  // of a chat
  const Ordered& grammar = nested.is_object() ? nested : format;
  if (type == "grammar") {
    absl::StatusOr<std::string> made =
        input_grammar(text_member(grammar, "syntax"), text_member(grammar, "definition"),
                      fmt::format("{{\"{}\": \"", input), "\"}");
    if (made.ok()) {
      tool.input_grammar = *std::move(made);
    } else {
      fields_.warn(place, "binds no input: its grammar " + std::string(made.status().message()));
    }
  }
  texts_.push_back(shown({{"name", tool.name},
                          {"description", described(custom, grammar)},
                          {"parameters", tool.parameters}}));
  use_.tools.push_back(std::move(tool));
}

void ToolReader::leave_out(const Ordered& type, const std::string& place) {
  fields_.warn(place, fmt::format("is left out: this server runs no tool of the type {}",
                                  excerpt(json(type))));
}

bool require_tool(const json& name, ToolUse& use) {
  const Tool* found = name.is_string() ? use.find(name.get_ref<const std::string&>()) : nullptr;
  use.choice = ToolUse::Choice::required;
  use.only = found == nullptr ? "" : found->name;
  return found != nullptr;
}

void allow_tools(const std::vector<std::string>& names, ToolUse& use,
                 std::vector<std::string>& texts) {
  std::vector<const Tool*> allowed;
  for (const std::string& name : names) {
    allowed.push_back(use.find(name));
  }
  std::vector<Tool> tools;
  std::vector<std::string> shown_tools;
  for (std::size_t i = 0; i < use.tools.size(); ++i) {
    if (std::ranges::find(allowed, &use.tools[i]) != allowed.end()) {
      tools.push_back(use.tools[i]);
      shown_tools.push_back(texts[i]);
    }
  }
  use.tools = std::move(tools);
  texts = std::move(shown_tools);
}

ToolUse read_tools(BodyFields& fields, const Ordered& ordered, std::vector<std::string>& texts) {
  ToolUse out;
  if (const json* given = fields.find("tools"); given != nullptr) {
    if (!given->is_array() || given->size() > kMaxTools) {
      fields.refuse("tools", fmt::format("must be a list of at most {} tools", kMaxTools));
      return out;
    }
    ToolReader reader(fields, out, texts);
    std::size_t i = 0;
    for (const Ordered& tool : ordered.at("tools")) {
      read_chat_tool(fields, tool, fmt::format("tools[{}]", i++), reader);
    }
  }
  if (fields.status().ok()) {
    read_tool_choice(fields, out, texts);
  }
  fields.boolean("parallel_tool_calls", out.parallel);
  return out;
}

}  // namespace tessera
