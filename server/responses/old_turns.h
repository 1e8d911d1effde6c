#pragma once

#include "absl/status/status.h"
#include "server/generation/service.h"

namespace tessera {

// Drops the oldest turns of a chat until the prompt leaves room for the answer: for the request's
// max_tokens, but at most half of the context, or for an eighth of it. The first system messages
// and the last turn stay.
//
// The turns are counted from the last one back until they fill the context, each once. So the work
// grows with the context, and the rest of a long conversation costs nothing.
// Requires: `prompt` is a Conversation.
// Errors: as Service::tokenize.
absl::Status drop_old_turns(const Service& service, const GenerateRequest& each, Prompt& prompt);

}  // namespace tessera
