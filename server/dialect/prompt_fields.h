#pragma once

#include <string_view>
#include <vector>

#include "server/json/body_fields.h"
#include "server/request/generate_request.h"

namespace tessera {

// Reads the field `name`: a text, token ids, or a list of either.
// Errors: InvalidArgument names the field, with the item ("prompt[2]"); also if it is missing.
absl::Status read_prompts(BodyFields& fields, std::string_view name, std::vector<Prompt>& out);

}  // namespace tessera
