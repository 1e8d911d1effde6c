#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/dialect/cache_control.h"

namespace tessera {

// Returns: the time of a block, or of the last block in it that has one. `place`: the block's name
// in the body.
std::optional<std::chrono::seconds> read_block_control(CacheControls& controls,
                                                       const nlohmann::json& block,
                                                       const std::string& place);

// Reads the marks of tools and of the blocks of a system prompt. Tools count as a part of the
// system's message, because templates print them there.
void read_marks_before_messages(BodyFields& fields, CacheControls& controls);

}  // namespace tessera
