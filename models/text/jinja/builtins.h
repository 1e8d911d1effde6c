#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/jinja/value.h"

namespace tessera::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `index` or of that name; null where it was not given.
  const Value* find(size_t index, std::string_view name) const;
};

// What the built-in functions need of the rendering they run in.
class Rendering {
 public:
  virtual ~Rendering() = default;

  // Counts work against the rendering's limit. Every function charges what it makes.
  virtual absl::Status charge(size_t units) = 0;
  virtual Value make_namespace(Dict attributes) = 0;
  virtual std::string local_time(const std::string& format) = 0;
};

// Units that a list's item is charged when the list is made. A byte of text is one.
inline constexpr size_t kItemCost = 256;

bool known_filter(std::string_view name);
bool known_test(std::string_view name);
bool known_function(std::string_view name);
bool known_method(std::string_view name);

// Each requires a known name.
absl::StatusOr<Value> apply_filter(std::string_view name, const Value& input,
                                   const Arguments& arguments, Rendering& rendering);
absl::StatusOr<bool> apply_test(std::string_view name, const Value& input,
                                const Arguments& arguments);
absl::StatusOr<Value> call_function(std::string_view name, const Arguments& arguments,
                                    Rendering& rendering);
absl::StatusOr<Value> call_method(std::string_view name, const Value& object,
                                  const Arguments& arguments, Rendering& rendering);

// `object.name` and `object[key]`: undefined where there is none. Errors: members of undefined.
absl::StatusOr<Value> member(const Value& object, const Value& key);

// `object[begin:end:step]`; a null bound was left out.
absl::StatusOr<Value> sliced(const Value& object, const Value* begin, const Value* end,
                             const Value* step, Rendering& rendering);

// printed(), charged.
absl::StatusOr<Text> print(const Value& value, Rendering& rendering);

// What a loop runs over: a list's items, a dict's keys, a string's characters, nothing for
// undefined. Errors: what cannot be iterated over.
absl::StatusOr<std::vector<Value>> items_of(const Value& value, Rendering& rendering);

absl::StatusOr<Value> binary(std::string_view name, const Value& left, const Value& right,
                             Rendering& rendering);

// Letter case of ASCII; other letters stay as they are.
enum class LetterCase { upper, lower, capital, title };
Text with_case(const Text& text, LetterCase letter_case, bool (*begins_word_after)(char));

// Python's json.dumps(value, ensure_ascii=False, indent=indent); a negative indent: one line.
absl::StatusOr<Text> to_json(const Value& value, int indent);

// Characters (not bytes) of a text: where each begins, and its end.
std::vector<size_t> character_starts(std::string_view text);

}  // namespace tessera::jinja
