#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Returns: `text` in double quotes, with control characters escaped, cut to 200 bytes. Use it for
// names that were read from a file.
std::string in_quotes(std::string_view text);

// Parses JSON of a checkpoint; `file` names it in errors. Stricter than most parsers, so that two
// parsers never read one file differently.
// Errors: InvalidArgument, also for a duplicate key in an object and for nesting deeper than
// kMaxJsonDepth.
absl::StatusOr<nlohmann::json> parse_strict_json(std::string_view text, const std::string& file);

inline constexpr int kMaxJsonDepth = 16;

// Reads the fields of one JSON object and checks their ranges. The first field that is missing, of
// a wrong type or out of range sets status(). Failed reads return harmless values, so the caller
// checks status() once at the end. JSON null counts as missing.
class JsonFields {
 public:
  // Requires: `object` is a JSON object and outlives this (not owned). `path` names it in errors,
  // e.g. "config.json" or "config.json: rope_scaling".
  JsonFields(const nlohmann::json& object, std::string path);

  bool has(const char* key) const;       // present and not null
  bool mentions(const char* key) const;  // present, null included

  // Functions without a fallback require the field. `min` and `max` are inclusive.
  int32_t integer(const char* key, int64_t min, int64_t max);
  int32_t integer_or(const char* key, int32_t fallback, int64_t min, int64_t max);
  float number(const char* key, double min, double max);
  float number_or(const char* key, float fallback, double min, double max);
  bool boolean_or(const char* key, bool fallback);
  std::string text(const char* key);
  std::string text_or(const char* key, const std::string& fallback);

  // Accepts one integer or a list of integers.
  // Returns: an empty list if the field is missing.
  std::vector<int32_t> integers_or_none(const char* key, int64_t min, int64_t max);
  // Returns: the list of numbers. The field is required.
  std::vector<float> numbers(const char* key, double min, double max);
  // Returns: the list of strings, or an empty list if the field is missing.
  std::vector<std::string> texts_or_none(const char* key);
  // Returns: the object under `key`, not owned; null if the field is missing or, with an error, if
  // it is not an object.
  const nlohmann::json* object_or_null(const char* key);

  // Sets status() to an InvalidArgument about `key`, unless there is an error already.
  void refuse(const char* key, const std::string& why);

  const absl::Status& status() const { return status_; }
  const std::string& path() const { return path_; }

 private:
  const nlohmann::json* find(const char* key) const;  // null: missing or JSON null
  float checked_number(const char* key, const nlohmann::json& value, double min, double max);
  int32_t checked_integer(const char* key, const nlohmann::json& value, int64_t min, int64_t max);

  const nlohmann::json& object_;
  std::string path_;
  absl::Status status_;
};

}  // namespace tessera
