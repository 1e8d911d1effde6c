#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "server/chat/tool_format.h"
#include "server/chat/tool_use.h"
#include "server/grammar/grammar_spec.h"

namespace tessera {

// The grammar of answers that must call a tool (`required`), or of those that may call tools of
// which some are strict. Arguments match the tool's schema; if a tool is not strict and its schema
// has keywords that no grammar enforces, they are any object.
// Returns: nothing if every text is allowed.
// Errors: InvalidArgument for the schema of a strict tool.
absl::StatusOr<std::optional<GrammarSpec>> tool_grammar(const ToolUse& use,
                                                        const ToolFormat& format);

// The grammar of answers that are calls of tools, or a text of `other`.
// Requires: the choice is `automatic`.
// Errors: InvalidArgument if `other` is not JSON, or if the format has no plain beginning.
absl::StatusOr<std::optional<GrammarSpec>> calls_or(const ToolUse& use, const ToolFormat& format,
                                                    const GrammarSpec& other);

}  // namespace tessera
