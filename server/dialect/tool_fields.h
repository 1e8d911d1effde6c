#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat/tool_use.h"
#include "server/json/body_fields.h"

namespace tessera {

// Returns: true for a name that grammars and templates can write as it is.
bool is_tool_name(std::string_view name);

// Collects the tools of a request, and the texts by which templates show them. Fields that say how
// a client's tool is found, cached or called are not part of these texts. Errors are in `fields`,
// with the place.
class ToolReader {
 public:
  ToolReader(BodyFields& fields, ToolUse& use, std::vector<std::string>& texts)
      : fields_(fields), use_(use), texts_(texts) {}

  // Adds {"name", "description", "parameters", "strict"}. `space`: a namespace, which the prompt's
  // name of the function begins with; empty: none.
  void add_function(const nlohmann::ordered_json& function, const std::string& place,
                    const std::string& space = {});

  // Adds {"name", "description", "format"}: a tool with a text as its input, of any form or within
  // a grammar. Models call it as a function (custom_input.h).
  void add_custom(const nlohmann::ordered_json& custom, const std::string& place,
                  const std::string& space = {});

  // Leaves out a tool that the server would have to run, with a warning.
  void leave_out(const nlohmann::ordered_json& type, const std::string& place);

 private:
  bool read_name(const nlohmann::ordered_json& tool, const std::string& place,
                 const std::string& space, Tool& out);

  BodyFields& fields_;
  ToolUse& use_;
  std::vector<std::string>& texts_;
};

// Requires a call of the tool with this name, or with this name within a namespace.
// Returns: false if there is none.
bool require_tool(const nlohmann::json& name, ToolUse& use);

// Keeps only the tools with these names. Those that are not known are ignored.
void allow_tools(const std::vector<std::string>& names, ToolUse& use,
                 std::vector<std::string>& texts);

// Reads tools, tool_choice and parallel_tool_calls of a chat. `texts`: takes the tools as templates
// show them. Errors are in `fields`.
ToolUse read_tools(BodyFields& fields, const nlohmann::ordered_json& ordered,
                   std::vector<std::string>& texts);

}  // namespace tessera
