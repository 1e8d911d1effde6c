#include "files/json_fields.h"

#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

using nlohmann::json;

// Parser callback that finds problems which are no longer visible in the parsed DOM.
struct StrictWatch {
  std::vector<std::set<std::string>> open_objects;  // keys seen so far in each one
  std::string problem;

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (!problem.empty()) {
      return false;
    }
    if (depth > kMaxJsonDepth) {
      problem = absl::StrCat("nested deeper than ", kMaxJsonDepth);
      return false;
    }
    if (event == json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        problem = absl::StrCat("the key ", in_quotes(key), " appears twice in one object");
        return false;
      }
    }
    return true;
  }
};

std::string shown(const json& value) {
  if (value.is_primitive() && !value.is_string()) {
    return value.dump();
  }
  return value.is_string() ? in_quotes(value.get_ref<const std::string&>())
                           : absl::StrCat("an ", value.type_name());
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr size_t kMax = 200;
  const absl::string_view head(text.data(), std::min(text.size(), kMax));
  return absl::StrCat("\"", absl::Utf8SafeCEscape(head), text.size() > kMax ? "..." : "", "\"");
}

absl::StatusOr<json> parse_strict_json(std::string_view text, const std::string& file) {
  StrictWatch watch;
  json parsed = json::parse(text.begin(), text.end(), std::ref(watch), /*allow_exceptions=*/false);
  if (!watch.problem.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", watch.problem));
  }
  if (parsed.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": is not valid JSON"));
  }
  return parsed;
}

JsonFields::JsonFields(const json& object, std::string path)
    : object_(object), path_(std::move(path)) {}

const json* JsonFields::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::has(const char* key) const {
  return find(key) != nullptr;
}

bool JsonFields::mentions(const char* key) const {
  return object_.contains(key);
}

void JsonFields::refuse(const char* key, const std::string& why) {
  if (status_.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, ": ", why));
  }
}

int32_t JsonFields::checked_integer(const char* key, const json& value, int64_t min, int64_t max) {
  // An unsigned value of 2^63 or more would become negative in int64_t.
  const bool too_big =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(max);
  if (!value.is_number_integer()) {
    refuse(key, absl::StrCat("is ", shown(value), ", expected an integer"));
    return static_cast<int32_t>(min);
  }
  if (too_big || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    refuse(key, absl::StrCat("is ", shown(value), ", expected ", min, " to ", max));
    return static_cast<int32_t>(min);
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

int32_t JsonFields::integer(const char* key, int64_t min, int64_t max) {
  const json* value = find(key);
  if (value == nullptr) {
    refuse(key, "is missing");
    return static_cast<int32_t>(min);
  }
  return checked_integer(key, *value, min, max);
}

int32_t JsonFields::integer_or(const char* key, int32_t fallback, int64_t min, int64_t max) {
  return has(key) ? integer(key, min, max) : fallback;
}

float JsonFields::number(const char* key, double min, double max) {
  const json* value = find(key);
  if (value == nullptr) {
    refuse(key, "is missing");
    return static_cast<float>(min);
  }
  return checked_number(key, *value, min, max);
}

float JsonFields::checked_number(const char* key, const json& value, double min, double max) {
  if (!value.is_number()) {
    refuse(key, absl::StrCat("is ", shown(value), ", expected a number"));
  } else if (const double read = value.get<double>(); !(read >= min && read <= max)) {
    refuse(key, absl::StrCat("is ", shown(value), ", expected ", min, " to ", max));
  } else {
    return static_cast<float>(read);
  }
  return static_cast<float>(min);
}

std::vector<float> JsonFields::numbers(const char* key, double min, double max) {
  const json* value = find(key);
  std::vector<float> read;
  if (value == nullptr || !value->is_array()) {
    refuse(key, value == nullptr ? "is missing"
                                 : absl::StrCat("is ", shown(*value), ", expected a list"));
    return read;
  }
  for (const json& item : *value) {
    read.push_back(checked_number(key, item, min, max));
  }
  return read;
}

float JsonFields::number_or(const char* key, float fallback, double min, double max) {
  return has(key) ? number(key, min, max) : fallback;
}

bool JsonFields::boolean_or(const char* key, bool fallback) {
  const json* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    refuse(key, absl::StrCat("is ", shown(*value), ", expected true or false"));
    return fallback;
  }
  return value->get<bool>();
}

std::string JsonFields::text(const char* key) {
  const json* value = find(key);
  if (value == nullptr) {
    refuse(key, "is missing");
  } else if (!value->is_string()) {
    refuse(key, absl::StrCat("is ", shown(*value), ", expected a string"));
  } else {
    return value->get<std::string>();
  }
  return {};
}

std::string JsonFields::text_or(const char* key, const std::string& fallback) {
  return has(key) ? text(key) : fallback;
}

std::vector<int32_t> JsonFields::integers_or_none(const char* key, int64_t min, int64_t max) {
  const json* value = find(key);
  if (value == nullptr) {
    return {};
  }
  if (!value->is_array()) {
    return {checked_integer(key, *value, min, max)};
  }
  std::vector<int32_t> read;
  for (const json& item : *value) {
    read.push_back(checked_integer(key, item, min, max));
  }
  return read;
}

std::vector<std::string> JsonFields::texts_or_none(const char* key) {
  const json* value = find(key);
  if (value == nullptr) {
    return {};
  }
  std::vector<std::string> read;
  if (!value->is_array()) {
    refuse(key, absl::StrCat("is ", shown(*value), ", expected a list of strings"));
    return read;
  }
  for (const json& item : *value) {
    if (!item.is_string()) {
      refuse(key, absl::StrCat("has ", shown(item), " in it, expected strings"));
      return read;
    }
    read.push_back(item.get<std::string>());
  }
  return read;
}

const json* JsonFields::object_or_null(const char* key) {
  const json* value = find(key);
  if (value != nullptr && !value->is_object()) {
    refuse(key, absl::StrCat("is ", shown(*value), ", expected an object"));
    return nullptr;
  }
  return value;
}

}  // namespace tessera
