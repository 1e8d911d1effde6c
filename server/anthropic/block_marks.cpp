#include "server/anthropic/block_marks.h"

#include <fmt/format.h>

#include <cstddef>

namespace tessera {
namespace {

using nlohmann::json;

// Returns: the list that an object has under this name; an empty one if it has none.
const json& list_in(const json& object, const char* name) {
  static const json kNone = json::array();
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() && found->is_array() ? *found : kNone;
}

}  // namespace

std::optional<std::chrono::seconds> read_block_control(CacheControls& controls, const json& block,
                                                       const std::string& place) {
  static const json kNone;
  const auto source = block.is_object() ? block.find("source") : block.end();
  const bool sourced = block.is_object() && source != block.end();
  std::optional<std::chrono::seconds> ttl;
  for (const json* list :
       {&list_in(block, "content"), &list_in(sourced ? *source : kNone, "content")}) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      const auto inner = controls.read_in((*list)[i], fmt::format("{}.content[{}]", place, i));
      ttl = inner.has_value() ? inner : ttl;
    }
  }
  const auto own = controls.read_in(block, place);
  return own.has_value() ? own : ttl;
}

void read_marks_before_messages(BodyFields& fields, CacheControls& controls) {
  const json* const tools = fields.find("tools");
  const json* const system = fields.find("system");
  const std::size_t messages = system != nullptr ? 1 : 0;
  for (std::size_t i = 0; tools != nullptr && tools->is_array() && i < tools->size(); ++i) {
    if (const auto ttl = controls.read_in((*tools)[i], fmt::format("tools[{}]", i))) {
      controls.mark({.messages = messages, .ttl = *ttl});
    }
  }
  std::size_t bytes = 0;
  for (std::size_t i = 0; system != nullptr && system->is_array() && i < system->size(); ++i) {
    const json text = (*system)[i].is_object() ? (*system)[i].value("text", json()) : json();
    bytes += i > 0 ? 1 : 0;  // a line's end
    bytes += text.is_string() ? text.get_ref<const std::string&>().size() : 0;
    if (const auto ttl = controls.read_in((*system)[i], fmt::format("system[{}]", i))) {
      controls.mark({.messages = messages, .bytes = bytes, .ttl = *ttl});
    }
  }
}

}  // namespace tessera
