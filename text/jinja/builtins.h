#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/value.h"

namespace tessera::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Returns: the argument at `index` or with that name; null if it was not given.
  const Value* find(size_t index, std::string_view name) const;
};

// Interface of a running rendering to the built-in filters, functions and methods.
class Rendering {
 public:
  virtual ~Rendering() = default;

  // Adds to the rendering's work, before it is done. Every function charges for the values that it
  // visits and creates. A unit is the copy of a byte: at most 4 ns (test JinjaLimits).
  // Errors: InvalidArgument above the limit (Context::max_work).
  virtual absl::Status charge(size_t units) = 0;
  virtual Value make_namespace(Dict attributes) = 0;
  virtual std::string local_time(const std::string& format) = 0;
};

// Work charged for each item of a new list, and for each item that is only copied. A byte of text
// costs 1.
inline constexpr size_t kItemCost = 256;
inline constexpr size_t kCopyCost = kItemCost / 8;

bool known_filter(std::string_view name);
bool known_test(std::string_view name);
bool known_function(std::string_view name);
bool known_method(std::string_view name);

// Requires: the name is known (known_filter() etc.).
// Errors: InvalidArgument for bad arguments.
absl::StatusOr<Value> apply_filter(std::string_view name, const Value& input,
                                   const Arguments& arguments, Rendering& rendering);
absl::StatusOr<bool> apply_test(std::string_view name, const Value& input,
                                const Arguments& arguments, Rendering& rendering);
absl::StatusOr<Value> call_function(std::string_view name, const Arguments& arguments,
                                    Rendering& rendering);
absl::StatusOr<Value> call_method(std::string_view name, const Value& object,
                                  const Arguments& arguments, Rendering& rendering);

// `object.name` and `object[key]`.
// Returns: undefined if there is no such member.
// Errors: InvalidArgument if `object` is undefined.
absl::StatusOr<Value> member(const Value& object, const Value& key, Rendering& rendering);

// `object[begin:end:step]`; a null pointer is an omitted bound.
absl::StatusOr<Value> sliced(const Value& object, const Value* begin, const Value* end,
                             const Value* step, Rendering& rendering);

// Resolves a path such as "a.b.c", or an index, in an item.
absl::StatusOr<Value> attribute_path(const Value& item, const Value& path, Rendering& rendering);

// Returns: printed(value). Charges the rendering for it.
absl::StatusOr<Text> print(const Value& value, Rendering& rendering);

// Charges the rendering for contains(container, item).
absl::Status charge_search(const Value& container, const Value& item, Rendering& rendering);

// Returns: the items of a loop over `value`: a list's items, a dict's keys, a string's characters,
// none for undefined.
// Errors: InvalidArgument if `value` is not iterable.
absl::StatusOr<std::vector<Value>> items_of(const Value& value, Rendering& rendering);

absl::StatusOr<Value> binary(std::string_view name, const Value& left, const Value& right,
                             Rendering& rendering);

// Changes the case of ASCII letters; other characters are unchanged. begins_word_after(c) is true
// if `title` starts a new word after the character c.
enum class LetterCase { upper, lower, capital, title };
Text with_case(const Text& text, LetterCase letter_case, bool (*begins_word_after)(char));

// Python's str.format.
// Errors: InvalidArgument for format specifications and paths, which are not supported.
absl::StatusOr<Value> format_text(const Text& text, const Arguments& arguments,
                                  Rendering& rendering);

// Arguments of Python's json.dumps.
struct JsonStyle {
  int indent = -1;  // negative: one line
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator{};  // empty: json.dumps' own
  std::string key_separator{};
};

// Errors: InvalidArgument for a float that is not finite, or a type without a JSON form.
absl::StatusOr<Text> to_json(const Value& value, const JsonStyle& style);

// Returns: the variable `loop` of an iteration.
absl::StatusOr<Value> loop_state(const std::vector<Value>& items, size_t index);

// Returns: byte offsets of the beginnings of all characters, and of the end of the text.
std::vector<size_t> character_starts(std::string_view text);
int64_t count_characters(std::string_view text);

}  // namespace tessera::jinja
