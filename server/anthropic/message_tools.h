#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/chat/tool_use.h"
#include "server/json/body_fields.h"

namespace tessera {

// The tools of a request in Anthropic's dialect. A deferred tool is not in the prompt until a
// result of the client's tool search refers to it (tool_reference). Its description then stands in
// that result, so that the prompt before it stays the same.
struct MessageTools {
  struct Deferred {
    Tool tool;
    std::string text;  // as a template shows it
    bool loaded = false;
  };

  ToolUse use{};
  std::vector<std::string> texts{};            // for the template
  std::map<std::string, Deferred> deferred{};  // by name
};

// Reads tools. Those that Anthropic publishes and the client runs are described (client_tools.h).
// Those that Anthropic runs itself are left out with a warning. Deferred tools are
// offered at once if the search for them is one of those. `ordered`: tools with ordered keys.
// Errors are in `fields`.
MessageTools read_message_tools(BodyFields& fields, const nlohmann::ordered_json& ordered);

// Offers the tools that were loaded, and reads tool_choice.
void read_message_choice(BodyFields& fields, MessageTools& tools);

}  // namespace tessera
