#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// Keys of one object, in members whose order matters: it is looked up by comparing all of them.
inline constexpr int kMaxOrderedKeys = 512;

// Items of one list, and values in one of these members, those in objects and lists included.
inline constexpr int kMaxOrderedItems = 4096;
inline constexpr int kMaxOrderedValues = 1 << 16;

// Reads those members of a body whose keys keep their order: a schema says the order in which a
// text has its properties, and a template prints a tool as the client wrote it.
// Requires: `body` passed parse_body() or parse_object().
// Returns: an object with the members of these names that the body has.
// Errors: InvalidArgument if an object in them has more than kMaxOrderedKeys keys, a list more than
// kMaxOrderedItems items, or one of them more than kMaxOrderedValues values.
absl::StatusOr<nlohmann::ordered_json> ordered_members(std::string_view body,
                                                       std::span<const std::string_view> names);

// Reads one JSON value whose keys keep their order.
// Errors: InvalidArgument as parse_object() and ordered_members().
absl::StatusOr<nlohmann::ordered_json> parse_ordered(std::string_view text);

}  // namespace tessera
