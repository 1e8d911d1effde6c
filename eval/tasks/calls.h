#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A call of a tool in a generated text.
struct TextCall {
  std::string name;
  std::string arguments;  // JSON with sorted keys

  friend bool operator==(const TextCall&, const TextCall&) = default;
};

// Returns: the calls in a text, in order: each JSON object with a "name" and "arguments" or
// "parameters". So most notations of chat templates are read alike, whatever marks their calls.
std::vector<TextCall> calls_in(std::string_view text);

// Returns: true if two texts have the same calls, in any order. Numbers of one value are equal.
bool have_same_calls(std::string_view text, std::string_view other);

}  // namespace tessera
