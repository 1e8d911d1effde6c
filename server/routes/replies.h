#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/http/message.h"

namespace tessera {

HttpReply json_reply(std::string body);

// Returns: `status` in OpenAI's format, with Retry-After if a retry makes sense.
HttpReply error_reply(const absl::Status& status);

// The same in the format of the path's dialect: Anthropic's from /v1/messages on. `code`: the HTTP
// status, if it is not that of `status`.
HttpReply error_reply_at(std::string_view path, const absl::Status& status);
HttpReply error_reply_at(std::string_view path, const absl::Status& status, int code);

// Returns: true for /v1/messages and the paths below it, whose errors have Anthropic's format.
bool is_of_messages(std::string_view path);

}  // namespace tessera
