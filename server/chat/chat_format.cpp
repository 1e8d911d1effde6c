#include "server/chat/chat_format.h"

namespace tessera {

ChatFormat chat_format_of(std::string_view template_source, std::string_view tools) {
  ChatFormat format;
  if (tools != "none") {
    format.tools = tools == "auto" ? &tool_format_of(template_source) : find_tool_format(tools);
  }
  format.thoughts = template_source.find("</think>") != std::string_view::npos;
  return format;
}

}  // namespace tessera
