#include "text/template_probe.h"

namespace tessera {
namespace {

// An id of nine letters, because templates of Mistral refuse any other.
const ToolCall kCall{
    .id = "tesseraid", .name = "probe_tool", .arguments = R"({"probe_key": "seen"})"};
constexpr const char* kTool =
    R"({"type": "function", "function": {"name": "probe_tool", "description": "d",)"
    R"( "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}}}})";

Conversation with_call(bool result) {
  Conversation asked{
      .messages = {{.role = "user", .content = "q"}, {.role = "assistant", .tool_calls = {kCall}}},
      .tools = {kTool}};
  if (result) {
    asked.messages.push_back(
        {.role = "tool", .content = "result_seen", .tool_call_id = kCall.id, .name = kCall.name});
    asked.messages.push_back({.role = "assistant", .content = "a"});
    asked.messages.push_back({.role = "user", .content = "q"});
  }
  return asked;
}

bool prints(const absl::StatusOr<std::string>& text, std::string_view part) {
  return text.ok() && text->find(part) != std::string::npos;
}

// Returns: true if the text has the call with its argument as JSON, or in another notation that is
// not Python's way of printing an object.
bool prints_call(const absl::StatusOr<std::string>& text, bool as_json) {
  const size_t call = text.ok() ? text->rfind("probe_tool") : std::string::npos;
  if (call == std::string::npos) {
    return false;
  }
  const std::string rest = text->substr(call);
  const bool has_value = rest.find("seen") != std::string::npos;
  return as_json ? has_value && rest.find("\"probe_key\":") != std::string::npos
                 : has_value && rest.find("'probe_key':") == std::string::npos &&
                       rest.find("\\\"probe_key") == std::string::npos;
}

}  // namespace

TemplateTraits probe_template(const ProbeRendering& render) {
  TemplateTraits traits;
  const Conversation described{.messages = {{.role = "user", .content = "q"}}, .tools = {kTool}};
  traits.abilities.tools = prints(render(described, {}), "probe_tool");
  for (const bool json : {true, false}) {
    for (const bool result : {false, true}) {
      for (const MessageStyle style : {MessageStyle{false, true}, MessageStyle{false, false},
                                       MessageStyle{true, true}, MessageStyle{true, false}}) {
        Conversation called = with_call(result);
        called.tools.clear();  // so that only the call can print the name
        if (prints_call(render(called, style), json)) {
          traits.abilities.calls = true;
          traits.style = style;
          traits.abilities.results = prints(render(with_call(true), style), "result_seen");
          return traits;
        }
      }
    }
  }
  return traits;
}

}  // namespace tessera
