#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/request.h"

namespace tessera {

// Appends a serialised request, for other ranks. Ranks are processes of the same program on
// machines of one kind, so numbers have their memory representation. Sinks are not serialised, only
// their number.
void append_request(const EngineRequest& request, std::vector<std::byte>& bytes);

// Reads a request from the front of `bytes` and removes it there. Each of its sinks is `sink`.
EngineRequest take_request(std::span<const std::byte>& bytes,
                           const std::shared_ptr<EventSink>& sink);

}  // namespace tessera
