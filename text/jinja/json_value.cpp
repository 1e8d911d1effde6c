#include "text/jinja/json_value.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace {

using jinja::Dict;
using jinja::None;
using jinja::Text;
using jinja::Value;
using nlohmann::json;

// Builds the value while the text is parsed: an object costs time linear in its keys, unlike an
// ordered_json.
class ValueBuilder final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return add(Value(None{})); }
  bool boolean(bool value) override { return add(Value(value)); }
  bool number_integer(int64_t value) override { return add(Value(value)); }
  bool number_unsigned(uint64_t value) override {
    return add(value > uint64_t{INT64_MAX} ? Value(static_cast<double>(value))
                                           : Value(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string&) override { return add(Value(value)); }
  bool string(std::string& value) override { return add(Value(Text(value, true))); }
  bool binary(json::binary_t&) override { return false; }

  bool start_object(size_t) override { return open(/*object=*/true); }
  bool start_array(size_t) override { return open(/*object=*/false); }
  bool key(std::string& value) override {
    open_.back().key = value;
    return true;
  }
  bool end_object() override {
    Dict dict;
    dict.items = std::move(open_.back().members);
    return close(Value::dict(std::move(dict)));
  }
  bool end_array() override { return close(Value::list(std::move(open_.back().items))); }

  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    status_ = absl::InvalidArgumentError("not JSON at byte " + std::to_string(at));
    return false;
  }

  absl::StatusOr<Value> take() {
    if (!status_.ok()) {
      return status_;
    }
    return std::move(value_);
  }

 private:
  // An object or a list that has begun.
  struct Open {
    bool object;
    std::string key{};
    std::vector<std::pair<Text, Value>> members{};
    std::vector<Value> items{};
  };

  bool open(bool object) {
    if (std::ssize(open_) >= Value::kMaxDepth) {
      status_ = absl::InvalidArgumentError("nested too deeply");
      return false;
    }
    open_.push_back({.object = object});
    return true;
  }

  bool close(absl::StatusOr<Value> made) {
    open_.pop_back();
    if (!made.ok()) {
      status_ = made.status();
      return false;
    }
    return add(*std::move(made));
  }

  bool add(Value value) {
    if (open_.empty()) {
      value_ = std::move(value);
    } else if (Open& top = open_.back(); top.object) {
      top.members.emplace_back(Text(std::move(top.key), true), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Open> open_;
  Value value_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Value> parse_json_value(std::string_view text) {
  ValueBuilder builder;
  json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace tessera
