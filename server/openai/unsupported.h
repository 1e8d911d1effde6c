#pragma once

#include "server/openai/body_fields.h"

namespace tessera {

// Refuses what other servers understand and this one does not, unless it asks for nothing: a
// client that believes it has tools must not get an answer without them.
void refuse_unsupported(BodyFields& fields, bool chat);

}  // namespace tessera
