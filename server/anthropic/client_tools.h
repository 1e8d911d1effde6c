#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace tessera {

// Anthropic publishes the inputs of tools that the client runs: its shell, its editor, its memory.
// A request names them by their type alone, because Anthropic's models know them.

// Returns: the tool with a description and a schema, as a tool of the client's own has them;
// nothing if the type is not one of these. `tool`: an object.
std::optional<nlohmann::ordered_json> described_client_tool(std::string_view type,
                                                            const nlohmann::ordered_json& tool);

}  // namespace tessera
