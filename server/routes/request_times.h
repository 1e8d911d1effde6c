#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "server/generation/service.h"
#include "server/http/message.h"

namespace tessera {

// Reads the times that a client gives for its request, in seconds such as "2.5":
//   x-queue-timeout    refuse or end the request if it is not admitted within this time
//   x-request-timeout  end it at this time after `received`, finished or not
// Errors: InvalidArgument that names the header, if its value is not above 0 and at most a day.
absl::Status read_request_times(const HttpRequest& http,
                                std::chrono::steady_clock::time_point received,
                                GenerateRequest& out);

}  // namespace tessera
