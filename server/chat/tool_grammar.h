#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/chat/tool_format.h"
#include "server/chat/tool_use.h"
#include "server/grammar/grammar_spec.h"

namespace tessera {

// The grammar of answers that must call a tool (`required`), or of those that may call tools of
// which some are strict. Arguments match the tool's schema; if a tool is not strict, without the
// keywords that no grammar enforces.
// left_out: receives messages about parts of the tools' schemas that do not bind the answer
// Returns: nothing if every text is allowed.
// Errors: InvalidArgument for the schema of a strict tool.
absl::StatusOr<std::optional<GrammarSpec>> tool_grammar(const ToolUse& use,
                                                        const ToolFormat& format,
                                                        std::vector<std::string>& left_out);

// The grammar of answers that are calls of tools, or a text of `other`. left_out: as above.
// Requires: the choice is `automatic`.
// Errors: InvalidArgument if `other` is not JSON, or if the format has no plain beginning.
absl::StatusOr<std::optional<GrammarSpec>> calls_or(const ToolUse& use, const ToolFormat& format,
                                                    const GrammarSpec& other,
                                                    std::vector<std::string>& left_out);

}  // namespace tessera
