#pragma once

#include <cstddef>
#include <cstdint>

#include "server/request/generate_request.h"

namespace tessera {

// Bytes of a streamed sample's events that may wait for the client without further room
// (StreamRoom).
inline constexpr std::size_t kUnreadBytes = 128 << 10;

// Returns: the most bytes of memory that the answer to a request of `samples` samples may take
// before its client has read it: the engine's events, the text, and JSON while it is printed. Its
// generated part counts only up to a limit if it is streamed, because the client reads meanwhile:
// bytes beyond the limit take room of their own while they wait.
int64_t answer_bytes(const GenerateRequest& request, std::size_t samples, int64_t prompt_tokens,
                     int64_t max_tokens);

// Returns: max_tokens of a request with room for `room` more tokens in its context. Without one:
// all of them. With a long context, an answer with log probabilities could then take all of
// `max_bytes`, which is that of any answer, so this one takes an eighth.
int32_t asked_tokens(const GenerateRequest& request, std::size_t samples, int32_t room,
                     std::size_t max_bytes);

}  // namespace tessera
