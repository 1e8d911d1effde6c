#include "server/anthropic/cache_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace tessera {
namespace {

using nlohmann::json;

const json& json_part(const json& object, const char* name) {
  static const json kNone;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : kNone;
}

std::optional<std::chrono::seconds> read_control_of(BodyFields& fields, const json& holder,
                                                    const std::string& place) {
  return read_cache_control(fields, json_part(holder, "cache_control"), place + ".cache_control");
}

}  // namespace

std::optional<std::chrono::seconds> read_cache_control(BodyFields& fields, const json& control,
                                                       const std::string& place) {
  if (control.is_null()) {
    return std::nullopt;
  }
  if (json_part(control, "type") != "ephemeral") {
    fields.refuse(place, "must be an object with the type ephemeral");
    return std::nullopt;
  }
  const json& ttl = json_part(control, "ttl");
  if (!ttl.is_null() && ttl != "5m" && ttl != "1h") {
    fields.refuse(place + ".ttl", "must be 5m or 1h");
    return std::nullopt;
  }
  return ttl == "1h" ? std::chrono::hours(1) : kShortTtl;
}

std::optional<std::chrono::seconds> read_block_control(BodyFields& fields, const json& block,
                                                       const std::string& place) {
  std::optional<std::chrono::seconds> ttl;
  for (const json* list :
       {&json_part(block, "content"), &json_part(json_part(block, "source"), "content")}) {
    for (std::size_t i = 0; list->is_array() && i < list->size(); ++i) {
      const auto inner =
          read_control_of(fields, (*list)[i], fmt::format("{}.content[{}]", place, i));
      ttl = inner.has_value() ? inner : ttl;
    }
  }
  const auto own = read_control_of(fields, block, place);
  return own.has_value() ? own : ttl;
}

void read_marks_before_messages(BodyFields& fields, std::vector<CacheMark>& marks) {
  const json* const tools = fields.find("tools");
  const json* const system = fields.find("system");
  const std::size_t messages = system != nullptr ? 1 : 0;
  for (std::size_t i = 0; tools != nullptr && tools->is_array() && i < tools->size(); ++i) {
    if (const auto ttl = read_control_of(fields, (*tools)[i], fmt::format("tools[{}]", i))) {
      add_mark(marks, {.messages = messages, .ttl = *ttl});
    }
  }
  std::size_t bytes = 0;
  for (std::size_t i = 0; system != nullptr && system->is_array() && i < system->size(); ++i) {
    const json& text = json_part((*system)[i], "text");
    bytes += i > 0 ? 1 : 0;  // a line's end
    bytes += text.is_string() ? text.get_ref<const std::string&>().size() : 0;
    if (const auto ttl = read_control_of(fields, (*system)[i], fmt::format("system[{}]", i))) {
      add_mark(marks, {.messages = messages, .bytes = bytes, .ttl = *ttl});
    }
  }
}

}  // namespace tessera
