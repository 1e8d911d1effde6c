#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera {

// While one exists, the BodyFields of its thread record in it the fields that a parser reads, and
// their types. So the description of the API comes from the code that parses (openapi.h).
class RecordedFields {
 public:
  RecordedFields();
  ~RecordedFields();
  RecordedFields(const RecordedFields&) = delete;
  RecordedFields& operator=(const RecordedFields&) = delete;

  // Called by BodyFields. `schema`: a JSON schema of the value; empty if any is read. A field of an
  // object has a dot before its name; of items of a list nothing is recorded.
  static void add(std::string_view field, const nlohmann::json& schema);

  // Returns: the JSON schema of a body with these fields and no others.
  nlohmann::ordered_json schema() const;

 private:
  std::map<std::string, nlohmann::json, std::less<>> fields_;
  RecordedFields* const before_;
};

}  // namespace tessera
