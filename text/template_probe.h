#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "text/conversation.h"
#include "text/message_value.h"
#include "text/plain_tools.h"

namespace tessera {

// Properties of a template that only its output shows.
struct TemplateTraits {
  TemplateAbilities abilities;
  MessageStyle style;
};

// Renders small conversations with tools to see which parts the template prints.
using ProbeRendering =
    std::function<absl::StatusOr<std::string>(const Conversation&, MessageStyle)>;
TemplateTraits probe_template(const ProbeRendering& render);

}  // namespace tessera
