#include "server/json/recorded_fields.h"

#include <utility>

namespace tessera {

namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

thread_local RecordedFields* current = nullptr;

}  // namespace

RecordedFields::RecordedFields() : before_(std::exchange(current, this)) {}

RecordedFields::~RecordedFields() {
  current = before_;
}

void RecordedFields::add(std::string_view field, const json& schema) {
  if (current == nullptr || field.find('[') != std::string_view::npos) {
    return;
  }
  json& known = current->fields_[std::string(field)];
  if (!schema.empty()) {
    known = schema;
  } else if (known.is_null()) {
    known = json::object();
  }
}

Ordered RecordedFields::schema() const {
  Ordered body = {{"type", "object"}, {"properties", Ordered::object()}};
  for (const auto& [name, schema] : fields_) {
    Ordered* properties = &body["properties"];
    std::string_view rest = name;
    for (auto dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
      Ordered& outer = (*properties)[std::string(rest.substr(0, dot))];
      if (!outer.contains("properties")) {
        // A field may have other forms beside the object ("kv_cache": a name).
        outer["properties"] = Ordered::object();
        outer["additionalProperties"] = false;
      }
      properties = &outer["properties"];
      rest.remove_prefix(dot + 1);
    }
    Ordered& property = (*properties)[std::string(rest)];
    if (property.is_null()) {
      property = Ordered::object();
    }
    property.update(Ordered(schema));
  }
  body["additionalProperties"] = false;
  return body;
}

}  // namespace tessera
