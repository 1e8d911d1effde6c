#include "server/generation/prompt_room.h"

#include <fmt/format.h>

#include "server/base/error.h"

namespace tessera {

absl::Status check_room(const GenerateRequest& request, int64_t prompt_tokens, int64_t context) {
  if (fits_context(prompt_tokens, request.max_tokens, context)) {
    return absl::OkStatus();
  }
  const bool chat = std::holds_alternative<Conversation>(request.prompt);
  return invalid_field(
      chat ? "messages" : "prompt",
      fmt::format("the {} {} tokens, but this model's maximum context length is {} tokens{}",
                  chat ? "messages have" : "prompt has", prompt_tokens, context,
                  request.max_tokens == 0 ? "" : ", at least one of them for the completion"),
      "context_length_exceeded");
}

absl::Status check_bytes(const char* field, std::size_t bytes, std::size_t max_bytes,
                         int64_t context) {
  return bytes <= max_bytes
             ? absl::OkStatus()
             : invalid_field(field,
                             fmt::format("the text has {} bytes, which cannot fit: this model's "
                                         "maximum context length is {} tokens",
                                         bytes, context),
                             "context_length_exceeded");
}

}  // namespace tessera
