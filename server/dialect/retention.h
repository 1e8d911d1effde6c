#pragma once

#include "server/json/body_fields.h"
#include "server/request/generate_request.h"

namespace tessera {

// Reads prompt_cache_key and prompt_cache_retention: with one of them, prompt and answer stay in
// the prefix cache, as far as the tenant's share allows it.
void read_retention(BodyFields& fields, GenerateRequest& out);

}  // namespace tessera
