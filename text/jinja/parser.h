#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace tessera::jinja {

// Max nesting of a template, statements and expressions together. The limit allows recursive
// functions on the tree.
inline constexpr int kMaxTreeDepth = 200;

// Errors: InvalidArgument, which names line and construct, for malformed templates and unknown
// statements, filters, tests, functions and methods.
absl::StatusOr<Statements> parse_template(std::string_view source);

// Parses the expression at the stream's position.
// macros: names that may be called in addition to the functions
// depth: nesting of statements around the expression
absl::StatusOr<ExpressionPtr> parse_expression(TokenStream& stream,
                                               const std::set<std::string>& macros, int depth);

// Parses `filter | filter ...`, applied to the variable kFilterInput.
absl::StatusOr<ExpressionPtr> parse_filters(TokenStream& stream,
                                            const std::set<std::string>& macros, int depth);

// Parses as parse_expression(), without `a if b else c` at the top level. A for loop has such an
// expression after `in`.
absl::StatusOr<ExpressionPtr> parse_unconditional(TokenStream& stream,
                                                  const std::set<std::string>& macros, int depth);

}  // namespace tessera::jinja
