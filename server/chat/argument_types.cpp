#include "server/chat/argument_types.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "server/chat/json_text.h"
#include "server/chat/python_literal.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// Schemas read for one argument. The rest of a larger one says nothing.
constexpr int kMaxSchemas = 64;
constexpr std::size_t kMaxValues = 64;  // of an enum

uint8_t named_type(std::string_view name) {
  constexpr std::pair<std::string_view, uint8_t> kNames[] = {
      {"string", JsonTypes::string},   {"integer", JsonTypes::integer},
      {"boolean", JsonTypes::boolean}, {"number", JsonTypes::integer | JsonTypes::fraction},
      {"null", JsonTypes::null},       {"object", JsonTypes::object},
      {"array", JsonTypes::array}};
  for (const auto& [known, bits] : kNames) {
    if (known == name) {
      return bits;
    }
  }
  return 0;
}

template <typename Value>
uint8_t type_of_value(const Value& value) {
  return value.is_string()           ? JsonTypes::string
         : value.is_number_integer() ? JsonTypes::integer
         : value.is_number()         ? JsonTypes::fraction
         : value.is_boolean()        ? JsonTypes::boolean
         : value.is_null()           ? JsonTypes::null
         : value.is_object()         ? JsonTypes::object
                                     : JsonTypes::array;
}

// Reads the schemas of one tool.
class SchemaReader {
 public:
  explicit SchemaReader(const Json& root) : root_(root) {}

  // Calls `found` with the name and the schema of each property.
  template <typename Found>
  void properties(const Found& found) {
    left_ = kMaxSchemas;
    each_part(root_, [&](const Json& part) {
      const auto properties = part.find("properties");
      if (properties != part.end() && properties->is_object()) {
        for (const auto& [name, schema] : properties->items()) {
          found(std::string(name), schema);
        }
      }
    });
  }

  JsonTypes types(const Json& schema) {
    left_ = kMaxSchemas;
    JsonTypes types;
    bool open = false;
    each_part(schema, [&](const Json& part) {
      const uint8_t own = own_types(part);
      types.bits |= own;
      open = open || (own == 0 && !has_parts(part));
    });
    return open || left_ < 0 ? JsonTypes() : types;
  }

 private:
  static constexpr const char* kLists[] = {"anyOf", "oneOf", "allOf"};

  static bool has_parts(const Json& schema) {
    return schema.contains("$ref") || schema.contains("anyOf") || schema.contains("oneOf") ||
           schema.contains("allOf");
  }

  // Calls `read` with a schema, and with those that it refers to or has as alternatives.
  template <typename Read>
  void each_part(const Json& schema, const Read& read) {
    if (--left_ < 0 || !schema.is_object()) {
      return;
    }
    read(schema);
    if (const auto reference = schema.find("$ref");
        reference != schema.end() && reference->is_string()) {
      if (const Json* target = find_target(reference->get_ref<const std::string&>())) {
        each_part(*target, read);
      }
    }
    for (const char* const list : kLists) {
      if (const auto parts = schema.find(list); parts != schema.end() && parts->is_array()) {
        for (const Json& part : *parts) {
          each_part(part, read);
        }
      }
    }
  }

  static uint8_t own_types(const Json& schema) {
    if (const auto type = schema.find("type"); type != schema.end()) {
      uint8_t bits = 0;
      for (const Json& name : type->is_array() ? *type : Json::array({*type})) {
        if (name.is_string()) {
          bits |= named_type(name.get_ref<const std::string&>());
        }
      }
      return bits;
    }
    if (const auto value = schema.find("const"); value != schema.end()) {
      return type_of_value(*value);
    }
    if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
      uint8_t bits = 0;
      for (std::size_t i = 0; i < std::min(values->size(), kMaxValues); ++i) {
        bits |= type_of_value(values->at(i));
      }
      return bits;
    }
    return schema.contains("properties") ? JsonTypes::object
           : schema.contains("items")    ? JsonTypes::array
                                         : 0;
  }

  const Json* find_target(std::string_view reference) const {
    const Json* at = reference.starts_with("#/") ? &root_ : nullptr;
    for (std::size_t begin = 2; at != nullptr && begin < reference.size();) {
      const std::size_t end = std::min(reference.find('/', begin), reference.size());
      const auto member = at->find(std::string(reference.substr(begin, end - begin)));
      at = at->is_object() && member != at->end() ? &*member : nullptr;
      begin = end + 1;
    }
    return at;
  }

  const Json& root_;
  int left_ = 0;
};

}  // namespace

bool JsonTypes::allows(const nlohmann::json& value) const {
  return bits == 0 || (bits & type_of_value(value)) != 0;
}

ArgumentTypes::ArgumentTypes(std::span<const Tool> tools) {
  for (const Tool& tool : tools) {
    Arguments& arguments = tools_[tool.name];
    SchemaReader reader(tool.parameters);
    std::vector<std::pair<std::string, const Json*>> found;
    reader.properties([&](std::string name, const Json& schema) {
      found.emplace_back(std::move(name), &schema);
    });
    for (const auto& [name, schema] : found) {
      arguments[name] = reader.types(*schema);
    }
  }
}

JsonTypes ArgumentTypes::of(std::string_view tool, std::string_view argument) const {
  const auto arguments = tools_.find(tool);
  if (arguments == tools_.end()) {
    return {};
  }
  const auto found = arguments->second.find(argument);
  return found == arguments->second.end() ? JsonTypes() : found->second;
}

std::string typed_argument(const std::string& text, JsonTypes types) {
  using Value = nlohmann::json;
  if (types.only_string()) {
    return json_string(text);
  }
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  const std::string bare = text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
  const auto parsed = [](const std::string& json) {
    return Value::parse(json, nullptr, /*allow_exceptions=*/false);
  };
  const Value given = parsed(bare);
  if (!given.is_discarded() && !given.is_string() && types.allows(given)) {
    return bare;
  }
  if (const std::optional<std::string> python = python_to_json(bare)) {
    const Value value = parsed(*python);
    if (!value.is_discarded() && !value.is_string() && types.allows(value)) {
      return *python;
    }
  }
  // A value of another type is closer to the model's intent than its text.
  return types.allows(JsonTypes::string) || given.is_discarded() ? json_string(text) : bare;
}

}  // namespace tessera
