#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// The body of a route: the function that parses it, and a body from which that function reads all
// fields that it knows. A route has one of these for each form of its body. A route without /v1 has
// those of its namesake.
struct RouteBody {
  std::string_view path;
  absl::Status (*parse)(std::string_view body);
  std::string_view sample;
};
std::span<const RouteBody> route_bodies();

// Returns: the OpenAPI 3.1 description of the HTTP API. Routes come from kRoutes (route_table.h).
// Fields come from the parsers: each one reads its sample and records the fields it looks for
// (RecordedFields). A field is required if its parser names it in the error of the sample without
// it.
std::string print_openapi();

}  // namespace tessera
