#pragma once

#include "server/json/body_fields.h"

namespace tessera {

// Refuses fields that other servers support and this one does not, unless the value asks for
// nothing. A client that sends tools, for example, must not get an answer that ignores them.
void refuse_unsupported(BodyFields& fields, bool chat);

}  // namespace tessera
