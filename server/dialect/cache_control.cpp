#include "server/dialect/cache_control.h"

#include <fmt/format.h>

#include <utility>

#include "server/base/error.h"

namespace tessera {
namespace {

using nlohmann::json;

const json& json_part(const json& object, const char* name) {
  static const json kNone;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : kNone;
}

bool is_of_system(const json& message) {
  const json& role = json_part(message, "role");
  return role == "system" || role == "developer";
}

// A tool is {"type": "function", "function": {...}}; either object may have the mark.
void read_tools(const json& tools, std::size_t messages, CacheControls& controls) {
  for (std::size_t i = 0; tools.is_array() && i < tools.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    for (const auto& ttl :
         {controls.read_in(tools[i], place),
          controls.read_in(json_part(tools[i], "function"), place + ".function")}) {
      if (ttl.has_value()) {
        controls.mark({.messages = messages, .ttl = *ttl});
      }
    }
  }
}

// The calls of a message follow its content.
void read_message(const json& message, std::size_t index, CacheControls& controls) {
  const std::string place = fmt::format("messages[{}]", index);
  const json& content = json_part(message, "content");
  std::size_t bytes = 0;
  for (std::size_t i = 0; content.is_array() && i < content.size(); ++i) {
    const json& refusal = json_part(content[i], "refusal");
    const json& text = refusal.is_string() ? refusal : json_part(content[i], "text");
    bytes += i > 0 ? 1 : 0;  // a line's end
    bytes += text.is_string() ? text.get_ref<const std::string&>().size() : 0;
    if (const auto ttl = controls.read_in(content[i], fmt::format("{}.content[{}]", place, i))) {
      controls.mark({.messages = index + 1, .bytes = bytes, .calls = 0, .ttl = *ttl});
    }
  }
  if (const auto ttl = controls.read_in(message, place)) {
    controls.mark({.messages = index + 1, .ttl = *ttl});
  }
}

}  // namespace

std::optional<std::chrono::seconds> CacheControls::read(const json& control,
                                                        const std::string& place) {
  if (control.is_null()) {
    return std::nullopt;
  }
  if (json_part(control, "type") != "ephemeral") {
    fields_.refuse(place, "must be an object with the type ephemeral");
    return std::nullopt;
  }
  const json& ttl = json_part(control, "ttl");
  if (!ttl.is_null() && ttl != "5m" && ttl != "1h") {
    fields_.refuse(place + ".ttl", "must be 5m or 1h");
    return std::nullopt;
  }
  return ttl == "1h" ? std::chrono::hours(1) : kShortTtl;
}

std::optional<std::chrono::seconds> CacheControls::read_in(const json& holder,
                                                           const std::string& place) {
  return read(json_part(holder, "cache_control"), place + ".cache_control");
}

std::vector<CacheMark> read_chat_marks(BodyFields& fields) {
  static const json kNone;
  const auto field = [&](const char* name) -> const json& {
    const json* const found = fields.find(name);
    return found != nullptr ? *found : kNone;
  };
  CacheControls controls(fields);
  const json& messages = field("messages");
  const bool system = !messages.empty() && is_of_system(messages.front());
  read_tools(field("tools"), system ? 1 : 0, controls);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    read_message(messages[i], i, controls);
  }
  if (const auto ttl = controls.read(field("cache_control"), "cache_control")) {
    controls.mark({.messages = messages.size(), .ttl = *ttl});
  }
  return controls.take();
}

}  // namespace tessera
