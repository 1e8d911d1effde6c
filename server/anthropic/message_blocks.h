#pragma once

#include <string_view>

#include "server/anthropic/message_tools.h"
#include "server/dialect/cache_control.h"
#include "server/json/body_fields.h"
#include "text/conversation.h"

namespace tessera {

// Reads system and messages. Results of tools stand before the text of their message. `body`: the
// text of the object that `fields` reads. Tools that a result refers to become loaded.
// `controls` receives the places that cache_control marks, those of tools too.
// Errors are in `fields`.
void read_message_blocks(BodyFields& fields, std::string_view body, MessageTools& tools,
                         Conversation& out, CacheControls& controls);

}  // namespace tessera
