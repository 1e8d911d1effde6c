#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/jinja/ast.h"

namespace tessera::jinja {

struct Context {
  std::vector<std::pair<std::string, Value>> variables;
  int64_t unix_seconds = 0;  // what strftime_now sees
  size_t max_work = 0;       // bytes made and steps taken, see Rendering::charge
};

// What the template prints. The tree must outlive the call; any thread may call it.
// Errors: InvalidArgument with the line, or with the template's own words from raise_exception;
// ResourceExhausted for a template that works, recurses or prints beyond all measure.
absl::StatusOr<Text> render(const Statements& statements, const Context& context);

}  // namespace tessera::jinja
