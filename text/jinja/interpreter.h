#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/ast.h"

namespace tessera::jinja {

struct Context {
  std::vector<std::pair<std::string, Value>> variables;
  int64_t unix_seconds = 0;  // time of strftime_now
  size_t max_work = 0;       // limit of bytes and steps, see Rendering::charge and allowed_work()
};

// Returns: the work that a template may do: max_work, or less for small variables. Published
// templates pass with an eighth of it (test published_templates). So a short request cannot ask
// for a long rendering.
size_t allowed_work(const Context& context);

// Returns: the output of the template. Thread-safe.
// Requires: `statements` outlives the call.
// Errors: InvalidArgument with the line, or with the message of raise_exception; also for a
// template that exceeds allowed_work() or recurses too deeply.
absl::StatusOr<Text> render(const Statements& statements, const Context& context);

}  // namespace tessera::jinja
