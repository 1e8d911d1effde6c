#pragma once

#include <string_view>

#include "server/chat/tool_format.h"

namespace tessera {

// The notation of the served model's answers.
struct ChatFormat {
  const ToolFormat* tools = nullptr;  // null: requests with tools are refused
  bool thoughts = false;
};

// tools: "auto" (from the template), "none" or the name of a format.
// Requires: `tools` is one of these.
ChatFormat chat_format_of(std::string_view template_source, std::string_view tools);

}  // namespace tessera
