#include "server/json/body_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/base/header_text.h"
#include "server/json/lenient_fields.h"
#include "server/json/recorded_fields.h"

namespace tessera {

namespace {

using nlohmann::json;

// Parser that keeps nothing but the position of the first syntax error.
class ErrorLocator final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(json::number_integer_t) override { return true; }
  bool number_unsigned(json::number_unsigned_t) override { return true; }
  bool number_float(json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(std::string&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception&) override {
    position = at;
    return false;
  }

  std::size_t position = 0;
};

// Size of a JSON text in the units that a parser allocates.
struct Shape {
  int deepest = 0;
  std::size_t parts = 0;           // objects, lists and keys
  std::size_t values = 0;          // members and items, at least
  std::string_view long_member{};  // one that is too long for a body; the rest is not read
};

// Reads the shape of a text, which need not be JSON. Done before parsing, because a level, an
// object or a key of few bytes takes much more time and memory when it is parsed.
class ShapeReader {
 public:
  // is_body: its members have at most kMaxOtherMember bytes, but for those that hold text.
  ShapeReader(std::string_view text, bool is_body) : text_(text), is_body_(is_body) {}

  Shape read() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        skip_string();
      }
      if (at_ > member_limit_) {
        shape_.long_member = name_;
        break;
      }
      if (c == '[' || c == '{') {
        shape_.deepest = std::max(shape_.deepest, ++depth_);
        ++shape_.parts;
      } else if (c == ']' || c == '}') {
        --depth_;
      } else if (c == ':') {
        ++shape_.parts;
        begin_member();
      } else if (c == ',') {
        ++shape_.values;
        if (depth_ == 1) {
          member_limit_ = std::string_view::npos;
        }
      }
    }
    return shape_;
  }

 private:
  // Moves to the quote that ends a string. find() is much faster than a loop over the bytes.
  void skip_string() {
    const std::size_t begin = ++at_;
    at_ = std::min(text_.find('"', at_), text_.size());
    while (at_ < text_.size() && is_escaped(begin)) {
      at_ = std::min(text_.find('"', at_ + 1), text_.size());
    }
    string_ = text_.substr(std::min(begin, at_), at_ - begin);
  }

  // Returns: true if an odd number of backslashes precedes the quote of a string from `begin` on.
  bool is_escaped(std::size_t begin) const {
    std::size_t first = at_;
    while (first > begin && text_[first - 1] == '\\') {
      --first;
    }
    return (at_ - first) % 2 == 1;
  }

  void begin_member() {
    if (depth_ == 1 && is_body_) {
      name_ = string_;
      const bool is_text = std::ranges::find(kTextMembers, name_) != std::end(kTextMembers);
      member_limit_ = is_text ? std::string_view::npos : at_ + kMaxOtherMember;
    }
  }

  const std::string_view text_;
  const bool is_body_;
  Shape shape_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::string_view string_;                            // the last one
  std::string_view name_;                              // of the body's last member
  std::size_t member_limit_ = std::string_view::npos;  // where it must have ended
};

// Parses an object of this shape.
absl::StatusOr<json> parse_within(std::string_view text, const Shape& shape) {
  if (shape.deepest > kMaxBodyDepth) {
    return absl::InvalidArgumentError(
        fmt::format("the body is nested more than {} levels deep", kMaxBodyDepth));
  }
  if (shape.parts > kMaxBodyParts || shape.values > kMaxBodyValues) {
    return absl::InvalidArgumentError(
        fmt::format("the body has more than {} objects, lists and keys, or more than {} values",
                    kMaxBodyParts, kMaxBodyValues));
  }
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    ErrorLocator locator;
    json::sax_parse(text, &locator);
    return absl::InvalidArgumentError(fmt::format(
        "the body is not valid JSON: error at byte {} of {}", locator.position, text.size()));
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        fmt::format("the body must be a JSON object, not {}", excerpt(value)));
  }
  return value;
}

// Returns: the JSON schema of a number in `range`, or of null. Bounds that every f32 has are left
// out.
json range_schema(std::string_view type, const OptionRange& range) {
  json schema = {{"type", {type, "null"}}};
  if (range.min > OptionRange{}.min) {
    schema[range.above ? "exclusiveMinimum" : "minimum"] = range.min;
  }
  if (range.max < OptionRange{}.max) {
    schema["maximum"] = range.max;
  }
  return schema;
}

}  // namespace

absl::StatusOr<json> parse_object(std::string_view text) {
  return parse_within(text, ShapeReader(text, /*is_body=*/false).read());
}

absl::StatusOr<json> parse_body(std::string_view text) {
  const Shape shape = ShapeReader(text, /*is_body=*/true).read();
  if (!shape.long_member.empty()) {
    return invalid_field(shape.long_member, fmt::format("{} has more than {} bytes",
                                                        shape.long_member, kMaxOtherMember));
  }
  return parse_within(text, shape);
}

std::string excerpt(const json& value) {
  constexpr std::size_t kMax = 40;
  if (value.is_array() || value.is_object()) {
    return fmt::format("{} of {}", value.is_array() ? "a list" : "an object", value.size());
  }
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kMax) {
    text = text.substr(0, kMax) + "...";
  }
  return text;
}

std::optional<int64_t> exact_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return static_cast<int64_t>(number);
    }
    return std::nullopt;
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::abs(number) <= kExact && number == std::trunc(number)) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

void BodyFields::record(std::string_view name, const json& schema) const {
  RecordedFields::add(prefix_ + std::string(name), schema);
}

const json* BodyFields::find(std::string_view name) {
  record(name, json::object());
  return find_unsupported(name);
}

const json* BodyFields::find_unsupported(std::string_view name) {
  known_.emplace(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void BodyFields::refuse_unknown() {
  constexpr std::size_t kMax = 64;  // bytes of a name in the error
  for (const auto& [name, value] : object_.items()) {
    const bool unknown = !value.is_null() && !known_.contains(name);
    if (unknown && !(prefix_.empty() && LenientFields::leave_out(name))) {
      refuse(name.substr(0, kMax), "is not known to this server", "unknown_parameter");
    }
  }
}

void BodyFields::text(std::string_view name, std::string& out) {
  record(name, {{"type", {"string", "null"}}});
  if (const json* value = find(name)) {
    if (value->is_string()) {
      out = value->get_ref<const std::string&>();
    } else {
      refuse(name, fmt::format("must be a string, not {}", excerpt(*value)));
    }
  }
}

void BodyFields::boolean(std::string_view name, bool& out) {
  record(name, {{"type", {"boolean", "null"}}});
  if (const json* value = find(name)) {
    if (value->is_boolean()) {
      out = value->get<bool>();
    } else {
      refuse(name, fmt::format("must be true or false, not {}", excerpt(*value)));
    }
  }
}

void BodyFields::number(const Option& option, float& out) {
  record(option.name, range_schema("number", option.range));
  const json* value = find(option.name);
  if (value == nullptr) {
    return;
  }
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  // Rounding to a float may leave the range.
  if (option.range.contains(number) && option.range.contains(static_cast<float>(number))) {
    out = static_cast<float>(number);
  } else {
    refuse(option.name, fmt::format("must be {}, not {}", option.range.numbers(), excerpt(*value)));
  }
}

std::optional<int64_t> BodyFields::integer_in(const Option& option, int64_t lowest,
                                              int64_t highest) {
  record(option.name, range_schema("integer", option.range));
  const json* value = find(option.name);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::optional<int64_t> number = exact_integer(*value);
  if (!number || *number < lowest || *number > highest ||
      !option.range.contains(static_cast<double>(*number))) {
    refuse(option.name, fmt::format("must be {}, not {}", option.range.integers(lowest, highest),
                                    excerpt(*value)));
    return std::nullopt;
  }
  return number;
}

void BodyFields::integers(std::string_view name, std::vector<int32_t>& out) {
  record(name, {{"type", {"array", "null"}}, {"items", {{"type", "integer"}}}});
  const json* value = find(name);
  if (value == nullptr) {
    return;
  }
  if (!value->is_array()) {
    refuse(name, fmt::format("must be a list of integers, not {}", excerpt(*value)));
    return;
  }
  out.clear();
  out.reserve(value->size());
  for (const json& item : *value) {
    const std::optional<int64_t> number = exact_integer(item);
    if (!number || *number != static_cast<int32_t>(*number)) {
      refuse(name, fmt::format("must be a list of integers of 32 bits; item {} is {}", out.size(),
                               excerpt(item)));
      return;
    }
    out.push_back(static_cast<int32_t>(*number));
  }
}

void BodyFields::texts(std::string_view name, std::vector<std::string>& out) {
  record(name, {{"type", {"string", "array", "null"}}, {"items", {{"type", "string"}}}});
  const json* value = find(name);
  if (value == nullptr) {
    return;
  }
  out.clear();
  if (value->is_string()) {
    out.push_back(value->get_ref<const std::string&>());
    return;
  }
  if (!value->is_array()) {
    refuse(name, fmt::format("must be a string or a list of strings, not {}", excerpt(*value)));
    return;
  }
  for (const json& item : *value) {
    if (!item.is_string()) {
      refuse(name,
             fmt::format("must be a list of strings; item {} is {}", out.size(), excerpt(item)));
      return;
    }
    out.push_back(item.get_ref<const std::string&>());
  }
}

void BodyFields::refuse(std::string_view name, std::string_view message, std::string_view code) {
  if (status_.ok()) {
    const std::string field = prefix_ + std::string(name);
    status_ = invalid_field(field, fmt::format("{} {}", field, message), code);
  }
}

void BodyFields::warn(std::string_view name, std::string_view message) {
  constexpr std::size_t kMax = 200;  // bytes of one
  if (warnings_.size() < kMaxWarnings) {
    warnings_.push_back(
        header_text(fmt::format("{}{} {}", prefix_, name, message).substr(0, kMax)));
  }
}

}  // namespace tessera
