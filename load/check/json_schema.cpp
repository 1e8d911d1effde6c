#include "load/check/json_schema.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "load/request/json_text.h"

namespace tessera::load {
namespace {

using nlohmann::json;

const std::set<std::string> kChecked = {
    "type",      "enum",     "const",    "properties", "required", "additionalProperties",
    "items",     "minItems", "maxItems", "minimum",    "maximum",  "minLength",
    "maxLength", "anyOf"};
const std::set<std::string> kIgnored = {"title",    "description", "default",
                                        "examples", "$schema",     "$id"};
const std::set<std::string> kTypes = {"object",  "array",   "string", "number",
                                      "integer", "boolean", "null"};

absl::Status check_types(const json& type, const std::string& where) {
  for (const json& name : type.is_array() ? type : json::array({type})) {
    if (!name.is_string() || !kTypes.contains(name.get<std::string>())) {
      return absl::InvalidArgumentError(
          absl::StrCat("schema: ", where, ".type: ", print_json(name), " is no JSON type"));
    }
  }
  return absl::OkStatus();
}

absl::Status check_shape(const json& schema, const std::string& where) {
  for (const char* name :
       {"minItems", "maxItems", "minimum", "maximum", "minLength", "maxLength"}) {
    if (schema.contains(name) && !schema[name].is_number()) {
      return absl::InvalidArgumentError(
          absl::StrCat("schema: ", where, ".", name, " must be a number"));
    }
  }
  for (const char* name : {"enum", "required", "anyOf"}) {
    if (schema.contains(name) && !schema[name].is_array()) {
      return absl::InvalidArgumentError(
          absl::StrCat("schema: ", where, ".", name, " must be an array"));
    }
  }
  for (const json& name : schema.value("required", json::array())) {
    if (!name.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("schema: ", where, ".required must hold strings"));
    }
  }
  if (schema.contains("properties") && !schema["properties"].is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("schema: ", where, ".properties must be an object"));
  }
  return absl::OkStatus();
}

absl::Status check_at(const json& schema, const std::string& where) {
  if (schema.is_boolean()) {
    return absl::OkStatus();
  }
  if (!schema.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("schema: ", where, " must be an object"));
  }
  for (const auto& [name, value] : schema.items()) {
    if (!kChecked.contains(name) && !kIgnored.contains(name)) {
      return absl::UnimplementedError(
          absl::StrCat("schema: ", where, ": the keyword '", name, "' is not supported"));
    }
  }
  TESSERA_RETURN_IF_ERROR(check_shape(schema, where));
  if (schema.contains("type")) {
    TESSERA_RETURN_IF_ERROR(check_types(schema["type"], where));
  }
  const json properties = schema.value("properties", json::object());
  for (const auto& [name, value] : properties.items()) {
    TESSERA_RETURN_IF_ERROR(check_at(value, absl::StrCat(where, ".", name)));
  }
  for (const char* name : {"items", "additionalProperties"}) {
    if (schema.contains(name)) {
      TESSERA_RETURN_IF_ERROR(check_at(schema[name], absl::StrCat(where, ".", name)));
    }
  }
  for (const json& one : schema.value("anyOf", json::array())) {
    TESSERA_RETURN_IF_ERROR(check_at(one, absl::StrCat(where, ".anyOf")));
  }
  return absl::OkStatus();
}

bool has_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number() && value.get<double>() == static_cast<double>(value.get<int64_t>()));
}

size_t characters(const std::string& utf8) {
  size_t count = 0;
  for (const char c : utf8) {
    count += (static_cast<unsigned char>(c) & 0xC0u) != 0x80u ? 1 : 0;
  }
  return count;
}

std::string violation(const json& value, const json& schema, const std::string& where);

std::string scalar_violation(const json& value, const json& schema, const std::string& where) {
  const auto outside = [&](const char* low, const char* high, double size) {
    return (schema.contains(low) && size < schema[low].get<double>()) ||
           (schema.contains(high) && size > schema[high].get<double>());
  };
  if (value.is_number() && outside("minimum", "maximum", value.get<double>())) {
    return absl::StrCat(where, ": ", print_json(value), " is out of range");
  }
  if (value.is_string() &&
      outside("minLength", "maxLength",
              static_cast<double>(characters(value.get_ref<const std::string&>())))) {
    return absl::StrCat(where, ": the length is out of range");
  }
  if (value.is_array() && outside("minItems", "maxItems", static_cast<double>(value.size()))) {
    return absl::StrCat(where, ": the number of items is out of range");
  }
  return "";
}

std::string object_violation(const json& value, const json& schema, const std::string& where) {
  for (const json& name : schema.value("required", json::array())) {
    if (!value.contains(name.get<std::string>())) {
      return absl::StrCat(where, ": '", name.get<std::string>(), "' is missing");
    }
  }
  const json properties = schema.value("properties", json::object());
  for (const auto& [name, member] : value.items()) {
    const json& rule = properties.contains(name)                 ? properties[name]
                       : schema.contains("additionalProperties") ? schema["additionalProperties"]
                                                                 : json(true);
    if (std::string found = violation(member, rule, absl::StrCat(where, ".", name));
        !found.empty()) {
      return found;
    }
  }
  return "";
}

std::string violation(const json& value, const json& schema, const std::string& where) {
  if (schema.is_boolean()) {
    return schema.get<bool>() ? "" : absl::StrCat(where, " is not allowed");
  }
  if (schema.contains("type")) {
    const json& type = schema["type"];
    bool fits = false;
    for (const json& name : type.is_array() ? type : json::array({type})) {
      fits = fits || has_type(value, name.get<std::string>());
    }
    if (!fits) return absl::StrCat(where, ": the type is not ", print_json(type));
  }
  if (schema.contains("const") && value != schema["const"]) {
    return absl::StrCat(where, " is not ", print_json(schema["const"]));
  }
  if (schema.contains("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) {
    return absl::StrCat(where, ": ", print_json(value), " is not one of ",
                        print_json(schema["enum"]));
  }
  if (std::string found = scalar_violation(value, schema, where); !found.empty()) return found;
  if (value.is_object()) {
    if (std::string found = object_violation(value, schema, where); !found.empty()) return found;
  }
  if (value.is_array() && schema.contains("items")) {
    for (size_t i = 0; i < value.size(); ++i) {
      std::string found = violation(value[i], schema["items"], absl::StrCat(where, "[", i, "]"));
      if (!found.empty()) return found;
    }
  }
  bool any = !schema.contains("anyOf");
  for (const json& one : schema.value("anyOf", json::array())) {
    any = any || violation(value, one, where).empty();
  }
  return any ? "" : absl::StrCat(where, ": none of anyOf fits");
}

}  // namespace

absl::Status check_schema(const json& schema) {
  return check_at(schema, "$");
}

std::string schema_violation(std::string_view text, const json& schema) {
  const json value = parse_json(text);
  if (value.is_discarded()) {
    return "the answer is not JSON";
  }
  return violation(value, schema, "$");
}

}  // namespace tessera::load
