#include <charconv>

#include "base/status_macros.h"
#include "text/jinja/builtins.h"

namespace tessera::jinja {
namespace {

// Returns: the argument that a field names: by its position, its name, or its order among `{}`.
// Errors: InvalidArgument if there is none, or for a format specification or a path.
absl::StatusOr<const Value*> field_value(const std::string& field, const Arguments& arguments,
                                         size_t& next) {
  if (field.find_first_of(":!.[") != std::string::npos) {
    return absl::InvalidArgumentError("format: only {}, {0} and {name} are supported, not {" +
                                      field + "}");
  }
  size_t position = 0;
  const char* const end = field.data() + field.size();
  const bool number = std::from_chars(field.data(), end, position).ptr == end;
  if (field.empty()) position = next++;
  const Value* value = field.empty() || number ? arguments.find(position, "")
                                               : arguments.find(std::string::npos, field);
  if (value == nullptr) {
    return absl::InvalidArgumentError("format: there is no argument for {" + field + "}");
  }
  return value;
}

}  // namespace

absl::StatusOr<Value> format_text(const Text& text, const Arguments& arguments,
                                  Rendering& rendering) {
  const std::string& bytes = text.bytes();
  Text result;
  size_t next = 0;
  size_t plain = 0;  // text from here on is copied
  for (size_t at = bytes.find_first_of("{}"); at != std::string::npos;
       at = bytes.find_first_of("{}", plain)) {
    TESSERA_RETURN_IF_ERROR(rendering.charge((at - plain) * 4 + kItemCost));
    result.append(text.slice(plain, at));
    if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {  // "{{" or "}}"
      result.append(text.slice(at, at + 1));
      plain = at + 2;
      continue;
    }
    const size_t close = bytes.find('}', at);
    if (bytes[at] == '}' || close == std::string::npos) {
      return absl::InvalidArgumentError("format: a bracket without the other");
    }
    TESSERA_RETURN_IF_ERROR(rendering.charge((close - at) * 8));
    TESSERA_ASSIGN_OR_RETURN(const Value* value,
                             field_value(bytes.substr(at + 1, close - at - 1), arguments, next));
    TESSERA_ASSIGN_OR_RETURN(const Text shown, print(*value, rendering));
    result.append(shown);
    plain = close + 1;
  }
  TESSERA_RETURN_IF_ERROR(rendering.charge((bytes.size() - plain) * 4));
  result.append(text.slice(plain, bytes.size()));
  return Value(std::move(result));
}

}  // namespace tessera::jinja
