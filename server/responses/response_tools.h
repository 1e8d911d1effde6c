#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/chat/tool_use.h"
#include "server/json/body_fields.h"

namespace tessera {

// Reads tools, tool_choice and parallel_tool_calls of /v1/responses. Functions in a namespace have
// it before their names. Tools that OpenAI runs itself are left out with a warning. `texts`: takes
// the tools as templates show them. Errors are in `fields`.
ToolUse read_response_tools(BodyFields& fields, const nlohmann::ordered_json& ordered,
                            std::vector<std::string>& texts);

}  // namespace tessera
