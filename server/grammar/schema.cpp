#include "server/grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "server/grammar/expanded_size.h"
#include "server/grammar/pattern.h"
#include "server/grammar/schema_keywords.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxLeftOut = 8;  // that a relaxed schema names

bool is_type(const Json& value, std::string_view type) {
  return (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
         (type == "string" && value.is_string()) || (type == "boolean" && value.is_boolean()) ||
         (type == "null" && value.is_null()) || (type == "number" && value.is_number()) ||
         (type == "integer" && value.is_number_integer());
}

class Checker {
 public:
  // left_out: receives the keywords that are left out; null: they are refused.
  explicit Checker(Json& root, std::vector<std::string>* left_out = nullptr)
      : root_(root), left_out_(left_out) {}

  // Returns: the text of the schema, checked.
  absl::StatusOr<std::string> run() {
    TESSERA_RETURN_IF_ERROR(check(root_, "$", 0));
    TESSERA_RETURN_IF_ERROR(check_references());
    std::string text = root_.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (std::ssize(text) > kMaxSchemaBytes) {
      return absl::InvalidArgumentError(fmt::format(
          "the schema has {} bytes, at most {} are allowed", text.size(), kMaxSchemaBytes));
    }
    return text;
  }

 private:
  absl::Status check(Json& schema, const std::string& path, int depth) {
    if (depth > kMaxSchemaDepth) {
      return refuse(path, fmt::format("is more than {} levels deep", kMaxSchemaDepth));
    }
    if (++nodes_ > kMaxSchemaNodes) {
      return refuse("$", fmt::format("has more than {} parts", kMaxSchemaNodes));
    }
    if (schema.is_boolean()) {
      return schema == true ? absl::OkStatus() : refuse(path, "allows no value");
    }
    if (!schema.is_object()) {
      return refuse(path, "is neither an object nor a boolean");
    }
    TESSERA_RETURN_IF_ERROR(check_keywords(schema, path));
    TESSERA_RETURN_IF_ERROR(check_parts(schema, path, depth));
    open_unnamed(schema);
    if (absl::Status status = name_required(schema, path); !status.ok()) {
      TESSERA_RETURN_IF_ERROR(leave_out(schema, "required", std::move(status)));
    }
    if (absl::Status status = check_escaped_names(schema, path); !status.ok()) {
      return leave_out(schema, "additionalProperties", std::move(status));
    }
    return absl::OkStatus();
  }

  // A reference that leads back to itself before any value begins would never end.
  absl::Status check_references() {
    for (const auto& [path, target] : references_) {
      TESSERA_RETURN_IF_ERROR(follow(target, path));
    }
    return absl::OkStatus();
  }

  static absl::Status refuse(std::string_view path, absl::string_view message) {
    return absl::InvalidArgumentError(fmt::format("{} {}", path, std::string(message)));
  }

  // Refuses a keyword, or leaves it out of a relaxed schema, with others that depend on it:
  // `additionalProperties` speaks of all names that are no properties.
  absl::Status leave_out(Json& schema, std::string_view name, absl::Status why) {
    if (left_out_ == nullptr) {
      return why;
    }
    if (left_out_->size() < kMaxLeftOut) {
      left_out_->emplace_back(why.message());
    }
    schema.erase(std::string(name));
    if (name == "properties") {
      schema.erase("additionalProperties");
      schema.erase("required");
    } else if (name == "prefixItems") {
      schema.erase("items");
    }
    return absl::OkStatus();
  }

  // Checks which keywords stand in a schema, and beside which others.
  absl::Status check_keywords(Json& schema, const std::string& path) {
    drop_format(schema);
    std::vector<const SchemaKeyword*> present;
    std::string_view whole;
    for (const auto& [name, value] : schema.items()) {
      if (const SchemaKeyword* keyword = find_keyword(name)) {
        present.push_back(keyword);
        whole = whole.empty() && keyword->use == KeywordUse::whole ? keyword->name : whole;
      }
    }
    for (const SchemaKeyword* keyword : present) {
      const std::string why = keyword_obstacle(schema, *keyword, whole);
      if (!why.empty() && schema.contains(keyword->name)) {
        TESSERA_RETURN_IF_ERROR(leave_out(schema, keyword->name,
                                          refuse(fmt::format("{}.{}", path, keyword->name), why)));
      }
    }
    if (!whole.empty() && schema.contains("type") && whole != "const" && whole != "enum") {
      return leave_out(schema, "type",
                       refuse(path + ".type", fmt::format("is not supported beside {}", whole)));
    }
    return absl::OkStatus();
  }

  absl::Status check_parts(Json& schema, const std::string& path, int depth) {
    std::vector<std::string> names;
    for (const auto& [name, value] : schema.items()) {
      names.push_back(name);
    }
    for (const std::string& name : names) {
      if (schema.contains(name)) {
        if (absl::Status status = check_part(schema, name, path, depth); !status.ok()) {
          TESSERA_RETURN_IF_ERROR(leave_out(schema, name, std::move(status)));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status check_part(Json& schema, const std::string& name, const std::string& path,
                          int depth) {
    Json& value = schema.at(name);
    const std::string place = path + "." + name;
    if (name == "properties" || name == "$defs" || name == "definitions") {
      return check_members(value, place, depth);
    }
    if (name == "items" || name == "additionalProperties") {
      return value == false ? absl::OkStatus() : check(value, place, depth + 1);
    }
    if (name == "anyOf" || name == "oneOf" || name == "allOf" || name == "prefixItems") {
      return check_list(value, place, depth);
    }
    if (name == "$ref") {
      return add_reference(value, place, path);
    }
    if (name == "type") {
      return check_type(value, place);
    }
    if (name == "const" || name == "enum") {
      return check_values(schema, name, path);
    }
    if (name == "pattern" && value.is_string()) {
      return check_pattern(value, place);
    }
    return check_value(schema, name, place);
  }

  absl::Status check_pattern(Json& value, const std::string& place) {
    const auto& given = value.get_ref<const std::string&>();
    patterns_.add(pattern_size(given, Notation::regex));
    if (const absl::Status size = patterns_.check(); !size.ok()) {
      return refuse(place, size.message());
    }
    const auto pattern = prepare_pattern(given);
    if (!pattern.ok()) {
      return refuse(place, pattern.status().message());
    }
    value = *pattern;
    return absl::OkStatus();
  }

  absl::Status check_members(Json& members, const std::string& place, int depth) {
    if (!members.is_object()) {
      return refuse(place, "must be an object");
    }
    for (auto& [name, member] : members.items()) {
      TESSERA_RETURN_IF_ERROR(check(member, place + "." + std::string(name), depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status check_list(Json& list, const std::string& place, int depth) {
    if (!list.is_array() || list.empty()) {
      return refuse(place, "must be a list that is not empty");
    }
    if (place.ends_with(".allOf") && list.size() > 1) {
      return refuse(place, "is supported with one schema only");
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (place.ends_with(".prefixItems") && !list[i].is_object()) {
        return refuse(place, "must be a list of objects");
      }
      TESSERA_RETURN_IF_ERROR(check(list[i], fmt::format("{}[{}]", place, i), depth + 1));
    }
    return absl::OkStatus();
  }

  static absl::Status check_type(const Json& type, const std::string& place) {
    constexpr std::string_view kTypes[] = {"object",  "array",   "string", "number",
                                           "integer", "boolean", "null"};
    const auto known = [&](const Json& name) {
      return name.is_string() && std::find(std::begin(kTypes), std::end(kTypes),
                                           name.get_ref<const std::string&>()) != std::end(kTypes);
    };
    const bool all = type.is_array() ? !type.empty() && std::all_of(type.begin(), type.end(), known)
                                     : known(type);
    return all ? absl::OkStatus() : refuse(place, "must be one of JSON's types, or a list of them");
  }

  // The compiler takes the values and ignores the type.
  absl::Status check_values(const Json& schema, const std::string& name, const std::string& path) {
    const Json& given = schema.at(name);
    if (name == "enum" && (!given.is_array() || given.empty())) {
      return refuse(path + ".enum", "must be a list that is not empty");
    }
    const Json values = name == "enum" ? given : Json::array({given});
    nodes_ += static_cast<int>(values.size());
    if (nodes_ > kMaxSchemaNodes) {
      return refuse(path + "." + name, "has too many values");
    }
    if (!schema.contains("type")) {
      return absl::OkStatus();
    }
    const Json& type = schema.at("type");
    for (const Json& value : values) {
      const auto fits = [&](const Json& one) {
        return one.is_string() && is_type(value, one.get<std::string>());
      };
      if (!(type.is_array() ? std::any_of(type.begin(), type.end(), fits) : fits(type))) {
        return refuse(path + "." + name, "has a value that is not of the type beside it");
      }
    }
    return absl::OkStatus();
  }

  // Numbers and texts, which the compiler bounds less than this server.
  static absl::Status check_value(const Json& schema, const std::string& name,
                                  const std::string& place) {
    const Json& value = schema.at(name);
    const SchemaKeyword* keyword = find_keyword(name);
    if (keyword == nullptr || keyword->use != KeywordUse::of_type) {
      return absl::OkStatus();
    }
    if (name.starts_with("min") || name.starts_with("max")) {
      const bool count = name != "minimum" && name != "maximum";
      if (count && (!value.is_number_integer() || value < 0 || value > kMaxSchemaRepeats)) {
        return refuse(place, fmt::format("must be an integer from 0 to {}", kMaxSchemaRepeats));
      }
    }
    if (keyword->type == "number" && !value.is_number()) {
      return refuse(place, "must be a number");
    }
    if (name == "pattern" && !value.is_string()) {
      return refuse(place, "must be a string");
    }
    if (name == "format" && !value.is_string()) {
      return refuse(place, "must be a string");
    }
    if (name == "required" &&
        !(value.is_array() && std::all_of(value.begin(), value.end(),
                                          [](const Json& one) { return one.is_string(); }))) {
      return refuse(place, "must be a list of strings");
    }
    return absl::OkStatus();
  }

  absl::Status add_reference(const Json& target, const std::string& place,
                             const std::string& path) {
    if (!target.is_string()) {
      return refuse(place, "must be a string");
    }
    const auto& text = target.get_ref<const std::string&>();
    const bool local =
        text == "#" || (text.starts_with("#/") && text.find_first_of("~%") == std::string::npos);
    if (!local || find_target(text) == nullptr) {
      return refuse(place, "must name a schema of this document: \"#/$defs/NAME\"");
    }
    references_.emplace_back(path, text);
    return absl::OkStatus();
  }

  const Json* find_target(std::string_view reference) const {
    const Json* at = &root_;
    for (std::size_t begin = 2; begin < reference.size();) {
      const std::size_t end = std::min(reference.find('/', begin), reference.size());
      const std::string part(reference.substr(begin, end - begin));
      const auto member = at->is_object() ? at->find(part) : at->end();
      if (!at->is_object() || member == at->end()) {
        return nullptr;
      }
      at = &*member;
      begin = end + 1;
    }
    return at;
  }

  absl::Status follow(const std::string& target, const std::string& path) {
    if (ending_.contains(target)) {
      return absl::OkStatus();
    }
    if (!following_.insert(target).second) {
      return refuse(path + ".$ref", "leads back to itself before any value begins");
    }
    const Json* schema = find_target(target);
    if (schema == nullptr) {  // left out after the reference was read
      return refuse(path + ".$ref", "names a schema that grammars do not have");
    }
    std::vector<const Json*> open{schema};
    while (!open.empty()) {
      const Json& at = *open.back();
      open.pop_back();
      if (!at.is_object()) {
        continue;
      }
      if (at.contains("$ref")) {
        TESSERA_RETURN_IF_ERROR(follow(at.at("$ref").get<std::string>(), path));
      }
      for (const char* const list : {"anyOf", "oneOf", "allOf"}) {
        if (at.contains(list)) {
          for (const Json& one : at.at(list)) {
            open.push_back(&one);
          }
        }
      }
    }
    ending_.insert(target);
    return absl::OkStatus();
  }

  // Objects and arrays that name nothing may hold anything.
  static void open_unnamed(Json& schema) {
    if (has_type(schema, "object") && !schema.contains("properties") &&
        !schema.contains("additionalProperties")) {
      schema["additionalProperties"] = true;
    }
    if (has_type(schema, "array") && !schema.contains("items") && !schema.contains("prefixItems")) {
      schema["items"] = true;
    }
  }

  // The compiler ignores required names that are not among the properties. So they become some.
  absl::Status name_required(Json& schema, const std::string& path) {
    const bool object = has_type(schema, "object") || !schema.contains("type");
    if (!object || !schema.contains("required")) {
      return absl::OkStatus();
    }
    const Json required = schema.at("required");
    const Json additional = schema.value("additionalProperties", Json(true));
    const auto bytes = static_cast<int64_t>(
        additional.dump(-1, ' ', false, Json::error_handler_t::replace).size());
    for (const Json& name : required) {
      const auto& text = name.get_ref<const std::string&>();
      const auto properties = schema.find("properties");
      if (properties != schema.end() && properties->contains(text)) {
        continue;
      }
      if (additional == false) {
        return refuse(path + ".required", "names a property that is not allowed");
      }
      added_bytes_ += bytes;
      if (++nodes_ > kMaxSchemaNodes || added_bytes_ > kMaxSchemaBytes) {
        return refuse(path + ".required", "names too much that is not among the properties");
      }
      schema["properties"][text] = additional;
    }
    return absl::OkStatus();
  }

  // The compiler would let an unnamed property have such a name, and any value.
  static absl::Status check_escaped_names(const Json& schema, const std::string& path) {
    if (!schema.contains("properties") ||
        schema.value("additionalProperties", Json(false)) == false) {
      return absl::OkStatus();
    }
    for (const auto& [name, value] : schema.at("properties").items()) {
      if (std::any_of(name.begin(), name.end(), [](char c) {
            return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
          })) {
        return refuse(path + ".additionalProperties",
                      "is not supported beside a property whose name JSON escapes");
      }
    }
    return absl::OkStatus();
  }

  Json& root_;
  std::vector<std::string>* const left_out_;
  int nodes_ = 0;
  PatternSize patterns_;     // of those read
  int64_t added_bytes_ = 0;  // of properties that only `required` names
  std::vector<std::pair<std::string, std::string>> references_;  // place, target
  std::set<std::string> following_;  // targets that are being followed, or were
  std::set<std::string> ending_;     // those that reach a value
};

}  // namespace

absl::StatusOr<std::string> prepare_schema(const nlohmann::ordered_json& schema) {
  Json prepared = schema;
  Checker checker(prepared);
  return checker.run();
}

RelaxedSchema relax_schema(const nlohmann::ordered_json& schema) {
  RelaxedSchema relaxed;
  Json prepared = schema;
  Checker checker(prepared, &relaxed.left_out);
  absl::StatusOr<std::string> text = checker.run();
  if (!text.ok()) {
    relaxed.left_out.emplace_back(text.status().message());
    text = Json{{"type", "object"}, {"additionalProperties", true}}.dump();
  }
  relaxed.text = *std::move(text);
  return relaxed;
}

}  // namespace tessera
