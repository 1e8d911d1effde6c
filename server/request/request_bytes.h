#pragma once

#include <cstddef>
#include <vector>

#include "server/request/completion_request.h"
#include "text/conversation.h"

namespace tessera {

// Returns: about how many bytes of memory these messages take.
std::size_t message_bytes(const std::vector<ChatMessage>& messages);

// Returns: bytes of the prompts of a request, at least 1.
std::size_t prompt_bytes(const CompletionRequest& request);

}  // namespace tessera
