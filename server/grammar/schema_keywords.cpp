#include "server/grammar/schema_keywords.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {
namespace {

using Use = KeywordUse;
using Json = nlohmann::ordered_json;

// The keywords of draft 2020-12 and of older drafts. Others are annotations.
constexpr SchemaKeyword kKeywords[] = {
    {"$comment", Use::ignored},
    {"$schema", Use::ignored},
    {"title", Use::ignored},
    {"description", Use::ignored},
    {"default", Use::ignored},
    {"examples", Use::ignored},
    {"deprecated", Use::ignored},
    {"readOnly", Use::ignored},
    {"writeOnly", Use::ignored},
    {"contentMediaType", Use::ignored},
    {"contentEncoding", Use::ignored},
    {"contentSchema", Use::ignored},
    {"discriminator", Use::ignored},
    {"$defs", Use::schemas},
    {"definitions", Use::schemas},
    {"$ref", Use::whole},
    {"const", Use::whole},
    {"enum", Use::whole},
    {"anyOf", Use::whole},
    {"oneOf", Use::whole},
    {"allOf", Use::whole},
    {"minimum", Use::of_type, "number"},
    {"maximum", Use::of_type, "number"},
    {"exclusiveMinimum", Use::of_type, "number"},
    {"exclusiveMaximum", Use::of_type, "number"},
    {"multipleOf", Use::of_type, "number"},
    {"minLength", Use::of_type, "string"},
    {"maxLength", Use::of_type, "string"},
    {"pattern", Use::of_type, "string"},
    {"format", Use::of_type, "string"},
    {"items", Use::of_type, "array"},
    {"prefixItems", Use::of_type, "array"},
    {"minItems", Use::of_type, "array"},
    {"maxItems", Use::of_type, "array"},
    {"uniqueItems", Use::only_false},
    {"properties", Use::of_type, "object"},
    {"required", Use::of_type, "object"},
    {"additionalProperties", Use::of_type, "object"},
    {"minProperties", Use::of_type, "object"},
    {"maxProperties", Use::of_type, "object"},
    {"nullable", Use::only_false},
    {"patternProperties", Use::refused},
    {"propertyNames", Use::refused},
    {"unevaluatedItems", Use::refused},
    {"unevaluatedProperties", Use::refused},
    {"additionalItems", Use::refused},
    {"contains", Use::refused},
    {"minContains", Use::refused},
    {"maxContains", Use::refused},
    {"dependencies", Use::refused},
    {"dependentRequired", Use::refused},
    {"dependentSchemas", Use::refused},
    {"not", Use::refused},
    {"if", Use::refused},
    {"then", Use::refused},
    {"else", Use::refused},
    {"$id", Use::refused},
    {"$anchor", Use::refused},
    {"$dynamicRef", Use::refused},
    {"$dynamicAnchor", Use::refused},
    {"$recursiveRef", Use::refused},
    {"$recursiveAnchor", Use::refused},
    {"$vocabulary", Use::refused},
};

constexpr std::string_view kFormats[] = {
    "date", "date-time",     "duration",     "email", "hostname",
    "ipv4", "ipv6",          "json-pointer", "time",  "relative-json-pointer",
    "uri",  "uri-reference", "uri-template", "uuid"};

}  // namespace

const SchemaKeyword* find_keyword(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kKeywords), std::end(kKeywords),
                   [&](const SchemaKeyword& keyword) { return keyword.name == name; });
  return found == std::end(kKeywords) ? nullptr : found;
}

bool has_type(const Json& schema, std::string_view type) {
  const auto found = schema.find("type");
  return found != schema.end() &&
         (*found == type ||
          (found->is_array() && std::find(found->begin(), found->end(), type) != found->end()));
}

void drop_format(Json& schema) {
  const auto format = schema.find("format");
  if (format == schema.end() || !format->is_string()) {
    return;
  }
  const bool known = std::find(std::begin(kFormats), std::end(kFormats),
                               format->get_ref<const std::string&>()) != std::end(kFormats);
  const bool alone =
      has_type(schema, "string") && !schema.contains("pattern") && !schema.contains("minLength") &&
      !schema.contains("maxLength") &&
      std::none_of(std::begin(kKeywords), std::end(kKeywords), [&](const auto& keyword) {
        return keyword.use == Use::whole && schema.contains(keyword.name);
      });
  if (!known || !alone) {
    schema.erase("format");
  }
}

std::string keyword_obstacle(const Json& schema, const SchemaKeyword& keyword,
                             std::string_view whole) {
  const std::string name(keyword.name);
  if (keyword.use == Use::refused ||
      (keyword.use == Use::only_false && schema.value(name, Json(false)) != false)) {
    return "is not supported in grammars";
  }
  const bool of_type = keyword.use == Use::of_type;
  if ((of_type || keyword.use == Use::whole) && !whole.empty() && keyword.name != whole) {
    return fmt::format("is not supported beside {}", whole);
  }
  // Without a type the compiler takes a schema for one of objects or of arrays, or ignores it.
  const bool typed =
      schema.contains("type") ||
      (keyword.type == "object" &&
       (schema.contains("properties") || schema.contains("additionalProperties"))) ||
      (keyword.type == "array" && (schema.contains("items") || schema.contains("prefixItems")));
  return of_type && !typed ? "needs a type beside it" : "";
}

}  // namespace tessera
