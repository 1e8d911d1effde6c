#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/jinja/text.h"

namespace tessera::jinja {

class Value;
struct Statement;

struct Undefined {
  std::string name;  // what was asked for, for error messages
};
struct None {};

// What a value costs whoever walks over all of it. Both are limited: a list may hold another list
// twice, and that one another list twice, and so on.
struct Extent {
  int depth = 1;      // of nesting
  size_t weight = 1;  // values and bytes in it, counted once per way that leads there
};

struct List {
  std::vector<Value> items;
  Extent extent;
};

struct Dict {
  std::vector<std::pair<Text, Value>> items;  // in order of insertion
  Extent extent;

  const Value* find(std::string_view key) const;
};

// What `namespace(...)` makes: the one value that changes. Owned by the rendering.
struct Namespace {
  Dict attributes;
};

struct Macro {
  const Statement* definition;  // of the template, which outlives every rendering
};

// A value of a template. Copies are cheap: text, lists and dicts are shared and never change.
class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                   std::shared_ptr<const List>, std::shared_ptr<const Dict>, Namespace*, Macro>;

  Value() : data_(Undefined{}) {}
  explicit Value(Undefined undefined) : data_(std::move(undefined)) {}
  explicit Value(None none) : data_(none) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  explicit Value(Namespace* space) : data_(space) {}
  explicit Value(Macro macro) : data_(macro) {}

  // Errors: nested more than kMaxDepth deep, or more than kMaxWeight altogether.
  static absl::StatusOr<Value> list(std::vector<Value> items);
  static absl::StatusOr<Value> dict(Dict dict);
  static constexpr int kMaxDepth = 64;
  static constexpr size_t kMaxWeight = size_t{1} << 28U;

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(data_); }  // not a bool
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_integer() || is_float(); }

  // Null where the value is something else.
  const Text* text() const { return pointer<Text>(); }
  const List* list() const { return pointer<List>(); }
  const Dict* dict() const { return pointer<Dict>(); }
  Namespace* space() const;
  const Macro* macro() const { return std::get_if<Macro>(&data_); }

  std::optional<int64_t> integer() const;  // of a bool 0 or 1
  std::optional<double> number() const;

  bool truthy() const;
  Extent extent() const;
  size_t weight() const { return extent().weight; }
  const char* type_name() const;  // for messages: "string", "list" ...
  std::string undefined_name() const;

 private:
  template <typename T>
  const T* pointer() const {
    const auto* shared = std::get_if<std::shared_ptr<const T>>(&data_);
    return shared == nullptr ? nullptr : shared->get();
  }

  explicit Value(std::shared_ptr<const List> items) : data_(std::move(items)) {}
  explicit Value(std::shared_ptr<const Dict> items) : data_(std::move(items)) {}

  Data data_;
};

bool equal(const Value& a, const Value& b);

// -1, 0 or 1. Errors: values that have no order.
absl::StatusOr<int> compare(const Value& a, const Value& b);

// Whether `item` is in `container`. Errors: a container that is none.
absl::StatusOr<bool> contains(const Value& container, const Value& item);

// As `{{ value }}` prints it: Python's str().
Text printed(const Value& value);

}  // namespace tessera::jinja
