#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/http/message.h"

namespace tessera {

HttpReply json_reply(std::string body);

// Returns: `status` in OpenAI's format, with Retry-After if a retry makes sense.
HttpReply error_reply(const absl::Status& status);

}  // namespace tessera
