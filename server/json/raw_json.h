#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Values as the text of a JSON document has them. A parsed value has sorted keys and rounded
// numbers, by which a prompt with it misses the prefix that the model wrote.
// Requires of all: the text is one valid JSON value, such as a body that passed parse_body().

// Returns: the texts of a list's items; none if the value is no list.
std::vector<std::string_view> raw_items(std::string_view list);

// Returns: the text of the last member of this name; empty if there is none or the value is no
// object.
std::string_view raw_member(std::string_view object, std::string_view name);

// Returns: the value with a blank after each comma and colon and no other between its parts, as
// chat templates print JSON and models are trained to write it.
std::string spaced_json(std::string_view value);

}  // namespace tessera
