#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "load/client/http_loop.h"
#include "load/client/server.h"

namespace tessera::load {

// An OpenAI-compatible server: "http://HOST[:PORT][/PREFIX]". Chats go to /v1/chat/completions,
// prompts to /v1/completions, and its state comes from /metrics. `loop` must outlive the server.
// Errors: InvalidArgument (the address), Unavailable (a host without an address).
absl::StatusOr<std::unique_ptr<Server>> make_http_server(HttpLoop& loop, const std::string& url,
                                                         const ServerOptions& options);

}  // namespace tessera::load
