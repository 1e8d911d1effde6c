#pragma once

#include <memory>
#include <string>

#include "load/client/http_loop.h"

namespace tessera::load {

// Returns: the body of a streaming request, for /v1/chat/completions if it has messages, else for
// /v1/completions.
std::string print_body(const LoadRequest& request, const std::string& model);

// Reads one streamed answer and passes its course on to `events`.
std::shared_ptr<HttpResponse> make_openai_reader(std::shared_ptr<GenerationEvents> events);

}  // namespace tessera::load
