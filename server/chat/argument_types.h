#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "server/chat/tool_use.h"

namespace tessera {

// Types of JSON that a schema allows.
struct JsonTypes {
  enum Type : uint8_t {
    string = 1,
    integer = 2,
    fraction = 4,  // a number that is not an integer
    boolean = 8,
    null = 16,
    object = 32,
    array = 64
  };
  uint8_t bits = 0;  // none: the schema says nothing, and every type is allowed

  bool only_string() const { return bits == string; }
  bool allows(Type type) const { return bits == 0 || (bits & type) != 0; }
  bool allows(const nlohmann::json& value) const;
};

// The types of tools' arguments, for notations that write values without them.
class ArgumentTypes {
 public:
  // Reads the tools' schemas: types, values of enum and const, alternatives and local references.
  explicit ArgumentTypes(std::span<const Tool> tools);

  bool has(std::string_view tool) const { return tools_.contains(tool); }

  // Returns: the types of an argument; all of them if the tool's schema does not name it.
  JsonTypes of(std::string_view tool, std::string_view argument) const;

 private:
  using Arguments = std::map<std::string, JsonTypes, std::less<>>;

  std::map<std::string, Arguments, std::less<>> tools_;
};

// Returns: the JSON text of a value that is written without quotes: the value of one of the types
// that its text is, in JSON or in Python, and otherwise the text itself as a string.
std::string typed_argument(const std::string& text, JsonTypes types);

}  // namespace tessera
