#pragma once

#include "server/json/body_fields.h"
#include "server/request/generate_request.h"

namespace tessera {

// Reads the options of engine/request_options.h. A plain option is the field of its name; absent
// fields leave their members unchanged. A seed of -1 is none, as in vLLM and llama-server. Not read
// here, because the endpoints differ: top_logprobs.
void read_options(BodyFields& fields, GenerateRequest& out);

// Reads the fields of the prefix cache alone: vLLM's cache_salt, llama-server's cache_prompt, and
// our own `cache`.
void read_cache(BodyFields& fields, GenerateRequest& out);

}  // namespace tessera
