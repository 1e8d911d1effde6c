#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "server/request/generate_request.h"

namespace tessera {

// Errors: InvalidArgument with OpenAI's code "context_length_exceeded" if a prompt of so many
// tokens leaves no room for the answer.
absl::Status check_room(const GenerateRequest& request, int64_t prompt_tokens, int64_t context);

// Errors: the same for a text of more than `max_bytes`, which cannot fit. `field`: its name.
absl::Status check_bytes(const char* field, std::size_t bytes, std::size_t max_bytes,
                         int64_t context);

}  // namespace tessera
