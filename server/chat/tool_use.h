#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera {

// A function that a model may call.
struct Tool {
  std::string name;                     // letters, digits, "_", "-" and "." only
  nlohmann::ordered_json parameters{};  // JSON schema; null: any object
  bool strict = false;                  // arguments must match the schema
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
};

}  // namespace tessera
