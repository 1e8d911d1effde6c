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
#include "text/jinja/text.h"

namespace tessera::jinja {

class Value;
struct Statement;

struct Undefined {
  std::string name;  // name of the missing variable or member, for messages
};
struct None {};

// Work of visiting a value besides the bytes of its text, in bytes.
inline constexpr size_t kValueWeight = 16;
inline constexpr size_t kKeyWeight = 96;  // of a search for a dict's key

// Cost of visiting a whole value. Both fields are limited, because a list may contain another list
// twice, which contains a third one twice, and so on.
struct Extent {
  int depth = 1;                 // of nesting
  size_t weight = kValueWeight;  // bytes of texts, and the above; shared ones count once for each
                                 // reference
};

struct List {
  std::vector<Value> items;
  Extent extent;
};

struct Dict {
  std::vector<std::pair<Text, Value>> items;  // in order of insertion
  Extent extent;
  bool integer_keys = false;        // the keys are integers in decimal digits, else strings
  std::vector<uint32_t> by_name{};  // of many items: their positions, in the order of the names

  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;  // by a value: keys of another type are not found
  Value key(const Text& name) const;          // of an item's name
  Value* find_mutable(std::string_view key) { return const_cast<Value*>(find(key)); }
};

// Result of `namespace(...)`, the only mutable value. Owned by the rendering.
struct Namespace {
  Dict attributes;
};

struct Macro {
  const Statement* definition;  // not owned; the template outlives every rendering
};

// A value of a template. Copies are cheap, because text, lists and dicts are shared and immutable.
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

  // Errors: InvalidArgument if nested deeper than kMaxDepth, or if the weight exceeds kMaxWeight.
  static absl::StatusOr<Value> list(std::vector<Value> items);
  static absl::StatusOr<Value> dict(Dict dict);  // as in Python, the last value of a key counts
  static constexpr int kMaxDepth = 64;
  static constexpr size_t kMaxWeight = size_t{1} << 28U;

  // Python's list.append and list.pop.
  // Requires: this is a list.
  // Errors: InvalidArgument for bad arguments, if another value holds the list too, or as list().
  absl::StatusOr<Value> append(const std::vector<Value>& arguments);
  absl::StatusOr<Value> pop(const std::vector<Value>& arguments);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(data_); }  // not a bool
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_integer() || is_float(); }

  // Return null if the value has another type. Not owned; valid as long as this value.
  const Text* text() const { return pointer<Text>(); }
  const List* list() const { return pointer<List>(); }
  const Dict* dict() const { return pointer<Dict>(); }
  Namespace* space() const;
  const Macro* macro() const { return std::get_if<Macro>(&data_); }

  std::optional<int64_t> integer() const;  // a bool is 0 or 1
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

  absl::StatusOr<List*> own_list();

  explicit Value(std::shared_ptr<const List> items) : data_(std::move(items)) {}
  explicit Value(std::shared_ptr<const Dict> items) : data_(std::move(items)) {}

  Data data_;
};

bool equal(const Value& a, const Value& b);

// Returns: the same number for equal values.
size_t hash_of(const Value& value);

// Returns: -1, 0 or 1.
// Errors: InvalidArgument for values without an order.
absl::StatusOr<int> compare(const Value& a, const Value& b);

// Returns: true if `item` is in `container`.
// Errors: InvalidArgument if it is not a container.
absl::StatusOr<bool> contains(const Value& container, const Value& item);

// Returns: the output of `{{ value }}`, which is Python's str().
Text printed(const Value& value);

}  // namespace tessera::jinja
