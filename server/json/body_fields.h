#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request_options.h"
#include "server/base/error.h"

namespace tessera {

// Parses a JSON object in valid UTF-8, within the limits below.
// Errors: InvalidArgument, for a syntax error with its byte position.
absl::StatusOr<nlohmann::json> parse_object(std::string_view text);

// Parses a request's body: the same, and a member that is not one of kTextMembers has at most
// kMaxOtherMember bytes. A longer one is refused before anything is parsed.
absl::StatusOr<nlohmann::json> parse_body(std::string_view text);

// The members that hold a prompt or a conversation. Every other one says how to answer it.
inline constexpr std::string_view kTextMembers[] = {
    "prompt", "messages",     "input",        "content",     "system", "tokens",    "instructions",
    "suffix", "input_prefix", "input_suffix", "input_extra", "query",  "documents", "queries",
    "items",  "text_1",       "text_2",       "data_1",      "data_2"};
inline constexpr std::size_t kMaxOtherMember = 512U << 10U;
inline constexpr int kMaxBodyDepth = 64;
inline constexpr std::size_t kMaxBodyParts = 1U << 18U;  // objects, lists and keys
inline constexpr std::size_t kMaxWarnings = 8;
inline constexpr std::size_t kMaxBodyValues = 1U << 21U;  // token ids, for the most part

// Returns: a value as error messages quote it: its JSON, truncated.
std::string excerpt(const nlohmann::json& value);

// Returns: the integer, which may be written as 5.0; nothing if it is none or does not fit.
std::optional<int64_t> exact_integer(const nlohmann::json& value);

// Reads the fields of an object. An absent or null field leaves its variable unchanged. A field of
// a wrong type or out of range sets status(), which keeps the first error.
class BodyFields {
 public:
  // `prefix`: precedes field names in errors: "stream_options.". `object` must outlive this.
  explicit BodyFields(const nlohmann::json& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  // Returns: the field, or null if it is absent or null. The field counts as known from now on.
  const nlohmann::json* find(std::string_view name);

  // The same for a field of a missing feature, which only values that ask for nothing may have. It
  // is not recorded (RecordedFields).
  const nlohmann::json* find_unsupported(std::string_view name);

  // Refuses each field that is not null and was never passed to find() or to a method below. See
  // LenientFields.
  void refuse_unknown();

  void text(std::string_view name, std::string& out);
  void boolean(std::string_view name, bool& out);

  // Numbers of the field `option.name`, in its range.
  void number(const Option& option, float& out);
  template <typename Int>
  void integer(const Option& option, Int& out) {
    using Limits = std::numeric_limits<Int>;
    if (const std::optional<int64_t> value = integer_in(option, Limits::min(), Limits::max())) {
      out = static_cast<Int>(*value);
    }
  }

  // A list of 32-bit integers.
  void integers(std::string_view name, std::vector<int32_t>& out);

  // A string or a list of strings.
  void texts(std::string_view name, std::vector<std::string>& out);

  void refuse(std::string_view name, std::string_view message, std::string_view code = {});

  // Takes over the error of a nested field, unless there is an earlier one.
  void adopt(const absl::Status& status) {
    if (status_.ok()) {
      status_ = status;
    }
  }

  const absl::Status& status() const { return status_; }

  // Notes that a part of the body is left out, which an answer can do without. The first few of a
  // body are kept, as printable ASCII.
  void warn(std::string_view name, std::string_view message);
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void record(std::string_view name, const nlohmann::json& schema) const;
  // lowest, highest: bounds of the integer's type.
  std::optional<int64_t> integer_in(const Option& option, int64_t lowest, int64_t highest);

  const nlohmann::json& object_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
  absl::Status status_;
  std::vector<std::string> warnings_;
};

}  // namespace tessera
