#include "server/chat/custom_input.h"

#include <algorithm>

namespace tessera {

std::optional<std::string> custom_arguments(const nlohmann::json& input) {
  if (!input.is_string()) {
    return std::nullopt;
  }
  return "{\"" + std::string(kCustomInput) +
         "\": " + input.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "}";
}

std::string custom_input(const std::string& arguments) {
  const auto parsed = nlohmann::json::parse(arguments, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object() && parsed.contains(kCustomInput) && parsed.at(kCustomInput).is_string()) {
    return parsed.at(kCustomInput).get<std::string>();
  }
  return arguments;
}

void CustomInputs::apply(std::vector<CallPart>& calls, int32_t ended) {
  for (CallPart& call : calls) {
    if (!call.id.empty() && std::ranges::find(tools_, call.name) != tools_.end()) {
      held_.push_back({.index = call.index});
    }
    const auto held = std::ranges::find(held_, call.index, &Held::index);
    if (held != held_.end()) {
      call.custom = true;
      held->arguments += std::exchange(call.arguments, {});
    }
  }
  std::erase_if(calls, [](const CallPart& call) { return call.custom && call.id.empty(); });
  for (const Held& held : held_) {
    if (held.index >= ended) {
      continue;
    }
    auto part = std::ranges::find(calls, held.index, &CallPart::index);
    if (part == calls.end()) {
      part = std::ranges::find_if(calls, [&](const CallPart& c) { return c.index > held.index; });
      part = calls.insert(part, {.index = held.index, .custom = true});
    }
    part->arguments = custom_input(held.arguments);
  }
  std::erase_if(held_, [&](const Held& held) { return held.index < ended; });
}

}  // namespace tessera
