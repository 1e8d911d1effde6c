#pragma once

#include "text/jinja/builtins.h"

namespace tessera::jinja {

// The filters that order or compare items. As jinja2's, they do not tell upper from lower case
// (of ASCII letters) unless case_sensitive is given.
// Errors: InvalidArgument for items without an order.
absl::StatusOr<Value> dictsort(const Value& input, const Arguments& arguments,
                               Rendering& rendering);
absl::StatusOr<Value> sorted(const Value& input, const Arguments& arguments, Rendering& rendering);
absl::StatusOr<Value> unique(const Value& input, const Arguments& arguments, Rendering& rendering);
absl::StatusOr<Value> smallest(const Value& input, const Arguments& arguments,
                               Rendering& rendering);
absl::StatusOr<Value> largest(const Value& input, const Arguments& arguments, Rendering& rendering);

}  // namespace tessera::jinja
