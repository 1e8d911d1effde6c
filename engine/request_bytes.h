#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/request.h"

namespace tessera {

// A request as bytes, for other ranks: processes of the same program on machines of one kind, so
// numbers are as memory has them. Of its sinks the number alone is told.
void append_request(const EngineRequest& request, std::vector<std::byte>& bytes);

// Takes one from the front of `bytes`. Each of its sinks is `sink`.
EngineRequest take_request(std::span<const std::byte>& bytes,
                           const std::shared_ptr<EventSink>& sink);

}  // namespace tessera
