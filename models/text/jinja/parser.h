#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/jinja/ast.h"
#include "models/text/jinja/token_stream.h"

namespace tessera::jinja {

// Templates nest at most this deep, statements and expressions together: what walks the tree may
// be recursive.
inline constexpr int kMaxTreeDepth = 200;

// Errors name line and construct: malformed templates, unknown statements, filters, tests,
// functions and methods.
absl::StatusOr<Statements> parse_template(std::string_view source);

// The expression at the stream's place. `macros`: names that may be called beside the functions.
absl::StatusOr<ExpressionPtr> parse_expression(TokenStream& stream,
                                               const std::set<std::string>& macros, int depth);

// The same without `a if b else c` at the top: what a for loop's `in` is followed by.
absl::StatusOr<ExpressionPtr> parse_unconditional(TokenStream& stream,
                                                  const std::set<std::string>& macros, int depth);

}  // namespace tessera::jinja
