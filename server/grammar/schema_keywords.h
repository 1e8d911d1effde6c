#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera {

// How prepare_schema() treats a keyword of JSON Schema.
enum class KeywordUse : uint8_t {
  ignored,     // says nothing about validity
  schemas,     // an object of schemas that only $ref reaches
  whole,       // decides alone: only annotations may stand beside it
  of_type,     // enforced for values of its type; says nothing about others
  refused,     // the compiler ignores it, and the answer might not be valid
  only_false,  // refused unless false
};

struct SchemaKeyword {
  std::string_view name;
  KeywordUse use;
  std::string_view type = {};  // of KeywordUse::of_type; two where numbers are meant
};

// Returns: the keyword of this name; null for one that is an annotation. Not owned.
const SchemaKeyword* find_keyword(std::string_view name);

// Returns: true if a schema names the type, alone or in a list.
bool has_type(const nlohmann::ordered_json& schema, std::string_view type);

// Drops a `format` that a grammar need not follow, because it is an annotation: one that the
// compiler does not know, or would take for the whole schema.
void drop_format(nlohmann::ordered_json& schema);

// whole: the first keyword of the schema that decides alone, or empty
// Returns: why a grammar cannot have a keyword of the schema; empty if it can.
std::string keyword_obstacle(const nlohmann::ordered_json& schema, const SchemaKeyword& keyword,
                             std::string_view whole);

}  // namespace tessera
