#include "server/dialect/grammar_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/grammar/make_spec.h"

namespace tessera {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;
using Kind = GrammarSpec::Kind;

// Collects the spec that the fields ask for. A second one is refused.
class Reader {
 public:
  Reader(BodyFields& fields, const Ordered& ordered) : fields_(fields), ordered_(ordered) {}

  std::optional<GrammarSpec> read() {
    read_response_format();
    if (spec_.has_value()) {
      // A structural tag may bind calls too.
      spec_->text_alone = spec_->kind != Kind::structural_tag;
    }
    read_structured_outputs();
    if (fields_.find("guided_json") != nullptr) {
      add_schema("guided_json", ordered_.at("guided_json"));
    }
    read_text("guided_regex", Kind::regex);
    read_text("guided_grammar", Kind::gbnf);
    read_text("grammar", Kind::gbnf);
    if (const json* choice = fields_.find("guided_choice"); choice && !choice->empty()) {
      add_choice("guided_choice", *choice);
    }
    if (const json* schema = fields_.find("json_schema"); schema && !schema->empty()) {
      add_schema("json_schema", ordered_.at("json_schema"));
    }
    return std::move(spec_);
  }

 private:
  void read_response_format() {
    const json* format = fields_.find("response_format");
    if (format == nullptr) {
      return;
    }
    const json type = format->is_object() ? format->value("type", json()) : json();
    const Ordered& ordered = ordered_.at("response_format");
    if (type == "json_object") {
      // llama-server's and Together's "schema" beside it
      ordered.contains("schema") ? add_schema("response_format.schema", ordered.at("schema"))
                                 : add({Kind::json, "object", "response_format"});
    } else if (type == "json_schema") {
      // llama-server takes the schema beside the type too
      const Ordered& holder = ordered.contains("json_schema") ? ordered.at("json_schema") : ordered;
      if (!holder.is_object() || !holder.contains("schema")) {
        fields_.refuse("response_format.json_schema.schema", "is missing");
        return;
      }
      add_schema("response_format.json_schema.schema", holder.at("schema"));
    } else if (type == "structural_tag") {
      add_tag("response_format", ordered);
    } else if (type != "text") {
      fields_.refuse("response_format.type",
                     fmt::format("must be text, json_object, json_schema or structural_tag, not {}",
                                 excerpt(type)));
    }
  }

  void read_structured_outputs() {
    const json* given = fields_.find("structured_outputs");
    if (given == nullptr || given->empty()) {
      return;
    }
    if (!given->is_object()) {
      fields_.refuse("structured_outputs",
                     fmt::format("must be an object, not {}", excerpt(*given)));
      return;
    }
    const Ordered& ordered = ordered_.at("structured_outputs");
    for (const auto& [name, value] : ordered.items()) {
      const std::string field = "structured_outputs." + std::string(name);
      if (value.is_null() || value == false) {
        continue;
      }
      if (name == "json") {
        add_schema(field, value);
      } else if (name == "json_object") {
        add({Kind::json, "object", field});
      } else if (name == "regex") {
        add_text(field, value, Kind::regex);
      } else if (name == "grammar") {
        add_text(field, value, Kind::gbnf);
      } else if (name == "choice") {
        add_choice(field, json(value));
      } else if (name == "structural_tag") {
        add_tag(field, value);
      } else if (name == "disable_any_whitespace" || name == "disable_fallback") {
        fields_.refuse(field, "is not supported by this server", "unsupported_parameter");
      } else {
        fields_.refuse(field, "is not known to this server", "unknown_parameter");
      }
    }
  }

  void read_text(const std::string& field, Kind kind) {
    const json* value = fields_.find(field);
    if (value != nullptr && *value != "") {
      add_text(field, Ordered(*value), kind);
    }
  }

  void add_text(const std::string& field, const Ordered& value, Kind kind) {
    if (!value.is_string()) {
      fields_.refuse(field, "must be a string");
      return;
    }
    add(field, notation_spec(kind, value.get<std::string>(), field));
  }

  // A schema as an object, or as its JSON text (vLLM).
  void add_schema(const std::string& field, const Ordered& value) {
    add(field, value.is_string() ? schema_text_spec(value.get_ref<const std::string&>(), field)
                                 : schema_spec(value, field));
  }

  void add_tag(const std::string& field, const Ordered& value) {
    add(field, notation_spec(Kind::structural_tag,
                             value.is_string() ? value.get<std::string>() : value.dump(), field));
  }

  void add_choice(const std::string& field, const json& choices) {
    const bool texts = choices.is_array() && !choices.empty() &&
                       std::all_of(choices.begin(), choices.end(),
                                   [](const json& one) { return one.is_string(); });
    if (!texts) {
      fields_.refuse(field, "must be a list of texts that are not empty");
      return;
    }
    add(field, choice_spec(choices.get<std::vector<std::string>>(), field));
  }

  void add(const std::string& field, absl::StatusOr<GrammarSpec> spec) {
    if (!spec.ok()) {
      fields_.refuse(field, std::string(spec.status().message()));
    } else {
      add(*std::move(spec));
    }
  }

  void add(GrammarSpec spec) {
    if (spec_.has_value()) {
      fields_.refuse(spec.field, fmt::format("cannot be combined with {}", spec_->field));
      return;
    }
    spec_ = std::move(spec);
  }

  BodyFields& fields_;
  const Ordered& ordered_;
  std::optional<GrammarSpec> spec_;
};

}  // namespace

std::optional<GrammarSpec> read_grammar(BodyFields& fields, const nlohmann::ordered_json& ordered) {
  return Reader(fields, ordered).read();
}

}  // namespace tessera
