#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A function that a model may call.
struct Tool {
  std::string name;                     // letters, digits, "_", "-" and "." only
  nlohmann::ordered_json parameters{};  // JSON schema; null: any object
  bool strict = false;                  // arguments must match the schema
  bool custom = false;                  // the client gives and takes a text (custom_input.h)
  std::string input_grammar{};          // of a custom tool: its arguments, as GBNF; empty: any text
  std::string space{};                  // namespace before a dot in `name`; empty: none

  // Returns: the name within the namespace.
  std::string_view shown_name() const {
    return std::string_view(name).substr(space.empty() ? 0 : space.size() + 1);
  }
};

// The tools of a request, and its choice among them.
struct ToolUse {
  enum class Choice : uint8_t { automatic, none, required };

  std::vector<Tool> tools{};
  Choice choice = Choice::automatic;
  std::string only{};    // with `required`: the tool that is called; empty: any
  bool parallel = true;  // an answer may have several calls

  // Returns: true if one of the tools has this name.
  bool has(const std::string& name) const {
    return std::any_of(tools.begin(), tools.end(),
                       [&](const Tool& tool) { return tool.name == name; });
  }

  // Returns: the tool of this name, or the first that has it within a namespace; null if none has.
  const Tool* find(std::string_view name) const {
    const auto exact = std::ranges::find(tools, name, &Tool::name);
    const auto found =
        exact != tools.end() ? exact : std::ranges::find_if(tools, [&](const Tool& tool) {
          return !tool.space.empty() && tool.shown_name() == name;
        });
    return found == tools.end() ? nullptr : &*found;
  }
};

}  // namespace tessera
