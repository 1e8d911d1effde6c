#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/json/body_fields.h"
#include "server/request/cache_marks.h"

namespace tessera {

// Read cache_control: {"type": "ephemeral", "ttl": "5m" or "1h"}. Errors are in `fields`.

// Returns: its time; nothing if `control` is null. `place`: its name in the body.
std::optional<std::chrono::seconds> read_cache_control(BodyFields& fields,
                                                       const nlohmann::json& control,
                                                       const std::string& place);

// Returns: the time of a block, or of the last block in it that has one.
std::optional<std::chrono::seconds> read_block_control(BodyFields& fields,
                                                       const nlohmann::json& block,
                                                       const std::string& place);

// Reads the marks of tools and of the blocks of a system prompt. Tools count as a part of the
// system's message, because templates print them there.
void read_marks_before_messages(BodyFields& fields, std::vector<CacheMark>& marks);

}  // namespace tessera
