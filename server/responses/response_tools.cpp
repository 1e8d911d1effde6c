#include "server/responses/response_tools.h"

#include <fmt/format.h>

#include <utility>

#include "server/dialect/tool_fields.h"
#include "server/request/request_limits.h"

namespace tessera {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

class ResponseToolReader {
 public:
  ResponseToolReader(BodyFields& fields, ToolUse& use, std::vector<std::string>& texts)
      : fields_(fields), use_(use), reader_(fields, use, texts) {}

  // `space`: the namespace around the tool; empty: none.
  void read(const Ordered& tool, const std::string& place, const std::string& space) {
    const Ordered type = tool.is_object() ? tool.value("type", Ordered()) : Ordered();
    if (!type.is_string()) {
      return fields_.refuse(place, "must be an object with type \"function\"");
    }
    if (type == "function") {
      reader_.add_function(tool, place, space);
    } else if (type == "custom") {
      reader_.add_custom(tool, place, space);
    } else if (type == "namespace" && space.empty()) {
      read_space(tool, place);
    } else {
      reader_.leave_out(type, place);
    }
    if (use_.tools.size() > kMaxTools) {
      fields_.refuse("tools", fmt::format("must have at most {} tools", kMaxTools));
    }
  }

 private:
  void read_space(const Ordered& tool, const std::string& place) {
    const Ordered name = tool.value("name", Ordered());
    if (!name.is_string() || !is_tool_name(name.get_ref<const std::string&>())) {
      return fields_.refuse(place + ".name", "must be 1 to 128 letters, digits, '_', '-' or '.'");
    }
    const Ordered tools = tool.value("tools", Ordered());
    if (!tools.is_array()) {
      return fields_.refuse(place + ".tools", "must be a list of tools");
    }
    std::size_t i = 0;
    for (const Ordered& one : tools) {
      read(one, fmt::format("{}.tools[{}]", place, i++), name.get<std::string>());
    }
  }

  BodyFields& fields_;
  ToolUse& use_;
  ToolReader reader_;
};

// Returns: the name in {"type": "function", "name"}, or of a custom tool, after its namespace.
json chosen_tool(const json& given) {
  const json type = given.is_object() ? given.value("type", json()) : json();
  if (type != "function" && type != "custom") {
    return {};
  }
  const json name = given.value("name", json());
  const json space = given.value("namespace", json());
  return name.is_string() && space.is_string()
             ? json(space.get<std::string>() + "." + name.get<std::string>())
             : name;
}

// {"type": "allowed_tools", "mode", "tools"}
// Returns: the mode, as the choice among the rest.
json allow_some(BodyFields& fields, const json& given, ToolUse& use,
                std::vector<std::string>& texts) {
  const json tools = given.value("tools", json());
  if (!tools.is_array()) {
    fields.refuse("tool_choice.tools", "must be a list of tools");
    return "auto";
  }
  std::vector<std::string> names;
  for (const json& tool : tools) {
    const json name = chosen_tool(tool);
    names.push_back(name.is_string() ? name.get<std::string>() : "");
  }
  allow_tools(names, use, texts);
  return given.value("mode", json("auto"));
}

void read_response_choice(BodyFields& fields, ToolUse& use, std::vector<std::string>& texts) {
  using Choice = ToolUse::Choice;
  const json* given = fields.find("tool_choice");
  if (given == nullptr) {
    return;
  }
  const bool some = given->is_object() && given->value("type", json()) == "allowed_tools";
  const json choice = some ? allow_some(fields, *given, use, texts) : *given;
  if (choice == "auto" || choice == "none") {
    use.choice = choice == "none" ? Choice::none : Choice::automatic;
    return;
  }
  use.choice = Choice::required;
  const json name = chosen_tool(choice);
  if (name.is_string()) {
    if (!require_tool(name, use)) {
      fields.refuse("tool_choice.name", "is not the name of one of tools");
    }
  } else if (choice != "required") {
    fields.refuse("tool_choice",
                  fmt::format("must be none, auto, required, allowed_tools, or an object with type "
                              "\"function\" or \"custom\" and a name, not {}: this server runs no "
                              "tools of its own",
                              excerpt(*given)));
  } else if (use.tools.empty()) {
    fields.refuse("tool_choice", "requires a call, but there are no tools that can be called");
  }
}

}  // namespace

ToolUse read_response_tools(BodyFields& fields, const Ordered& ordered,
                            std::vector<std::string>& texts) {
  ToolUse use;
  if (const json* given = fields.find("tools"); given != nullptr) {
    if (!given->is_array() || given->size() > kMaxTools) {
      fields.refuse("tools", fmt::format("must be a list of at most {} tools", kMaxTools));
      return use;
    }
    ResponseToolReader reader(fields, use, texts);
    std::size_t i = 0;
    for (const Ordered& tool : ordered.at("tools")) {
      reader.read(tool, fmt::format("tools[{}]", i++), "");
    }
  }
  if (fields.status().ok()) {
    read_response_choice(fields, use, texts);
  }
  fields.boolean("parallel_tool_calls", use.parallel);
  return use;
}

}  // namespace tessera
