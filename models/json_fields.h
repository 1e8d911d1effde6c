#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tessera {

// `text` in double quotes, control characters escaped and cut to a length that a log line bears.
// For names that came out of a file.
std::string in_quotes(std::string_view text);

// Parses JSON that came with a checkpoint, `file` names it in errors. Stricter than most parsers,
// because two readers of one file must not understand different things: a key that stands twice in
// an object is refused, so is nesting deeper than kMaxJsonDepth. Errors: InvalidArgument.
absl::StatusOr<nlohmann::json> parse_strict_json(std::string_view text, const std::string& file);

inline constexpr int kMaxJsonDepth = 16;

// Reads the fields of one JSON object with their ranges. The first field that is missing, of a
// wrong type or out of range is remembered, later reads return harmless values, and one look at
// status() at the end tells. JSON's null counts as missing.
class JsonFields {
 public:
  // `object` must be a JSON object and outlive this. `path` is what errors call it, such as
  // "config.json" or "config.json: rope_scaling".
  JsonFields(const nlohmann::json& object, std::string path);

  bool has(const char* key) const;       // present and not null
  bool mentions(const char* key) const;  // present, null included

  // Without a default the field must be there.
  int32_t integer(const char* key, int64_t min, int64_t max);
  int32_t integer_or(const char* key, int32_t fallback, int64_t min, int64_t max);
  float number(const char* key, double min, double max);
  float number_or(const char* key, float fallback, double min, double max);
  bool boolean_or(const char* key, bool fallback);
  std::string text(const char* key);
  std::string text_or(const char* key, const std::string& fallback);

  // One integer or a list of them; empty where the field is missing.
  std::vector<int32_t> integers_or_none(const char* key, int64_t min, int64_t max);
  // A list of strings; empty where the field is missing.
  std::vector<std::string> texts_or_none(const char* key);
  // The object under `key`; null where the field is missing or is no object (an error then).
  const nlohmann::json* object_or_null(const char* key);

  // Notes an error about `key` that the caller found, unless there is one already.
  void refuse(const char* key, const std::string& why);

  const absl::Status& status() const { return status_; }
  const std::string& path() const { return path_; }

 private:
  const nlohmann::json* find(const char* key) const;  // null: missing or JSON's null
  int32_t checked_integer(const char* key, const nlohmann::json& value, int64_t min, int64_t max);

  const nlohmann::json& object_;
  std::string path_;
  absl::Status status_;
};

}  // namespace tessera
