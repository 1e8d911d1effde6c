#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/builtins.h"

namespace tessera::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr const char* kBlanks = " \t\n\r\v\f";

bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}
bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_no_letter(char c) {
  return !is_upper(c) && !is_lower(c) && (static_cast<unsigned char>(c) & 0x80U) == 0;
}

absl::StatusOr<const Text*> text_argument(const Arguments& arguments, size_t index,
                                          std::string_view name) {
  const Value* value = arguments.find(index, name);
  if (value != nullptr && value->text() != nullptr) return value->text();
  return absl::InvalidArgumentError("argument \"" + std::string(name) + "\" must be a string");
}

absl::StatusOr<size_t> limit_argument(const Arguments& arguments, size_t index,
                                      std::string_view name) {
  const Value* value = arguments.find(index, name);
  if (value == nullptr || value->is_none()) return std::string::npos;
  if (!value->is_integer()) {
    return absl::InvalidArgumentError("argument \"" + std::string(name) + "\" must be an integer");
  }
  return *value->integer() < 0 ? std::string::npos : static_cast<size_t>(*value->integer());
}

Result strip(const Text& text, const Arguments& arguments, Rendering& rendering, bool left,
             bool right) {
  TESSERA_RETURN_IF_ERROR(rendering.charge(text.size() * 2));
  const Value* characters = arguments.find(0, "chars");
  if (characters == nullptr || characters->is_none()) return Value(text.strip("", left, right));
  TESSERA_ASSIGN_OR_RETURN(const Text* set, text_argument(arguments, 0, "chars"));
  TESSERA_RETURN_IF_ERROR(rendering.charge(text.size() * (set->size() / 16)));
  return Value(set->empty() ? text : text.strip(set->bytes(), left, right));
}

Result split(const Text& text, const Arguments& arguments, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(const size_t limit, limit_argument(arguments, 1, "maxsplit"));
  const Value* separator = arguments.find(0, "sep");
  const bool blanks = separator == nullptr || separator->is_none();
  std::string_view at_text;
  if (!blanks) {
    TESSERA_ASSIGN_OR_RETURN(const Text* given, text_argument(arguments, 0, "sep"));
    if (given->empty()) return absl::InvalidArgumentError("split: empty separator");
    at_text = given->bytes();
  }
  TESSERA_RETURN_IF_ERROR(
      rendering.charge(blanks ? text.size() * 4 : find_cost(text.bytes(), at_text)));
  const std::string& bytes = text.bytes();
  const auto skip_blanks = [&](size_t at) {
    return blanks ? std::min(bytes.find_first_not_of(kBlanks, at), bytes.size()) : at;
  };
  std::vector<Value> parts;
  size_t at = skip_blanks(0);
  while (parts.size() < limit && !(blanks && at == bytes.size())) {
    const size_t found = blanks ? bytes.find_first_of(kBlanks, at) : find_bytes(bytes, at_text, at);
    if (found == std::string::npos) break;
    TESSERA_RETURN_IF_ERROR(rendering.charge(kItemCost));
    parts.emplace_back(text.slice(at, found));
    at = skip_blanks(found + (blanks ? 1 : at_text.size()));
  }
  if (!blanks || at < bytes.size()) parts.emplace_back(text.slice(at, bytes.size()));
  return Value::list(std::move(parts));
}

Result split_lines(const Text& text, Rendering& rendering) {
  TESSERA_RETURN_IF_ERROR(rendering.charge(text.cost() * 2));
  std::vector<Value> lines;
  for (size_t at = 0; at < text.size();) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(kItemCost));
    const size_t end = std::min(text.bytes().find_first_of("\n\r", at), text.size());
    lines.emplace_back(text.slice(at, end));
    at = end + (text.bytes().compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return Value::list(std::move(lines));
}

Result matches(const Text& text, const Arguments& arguments, Rendering& rendering, bool at_end) {
  const Value* wanted = arguments.find(0, "prefix");
  if (wanted == nullptr) return absl::InvalidArgumentError("startswith and endswith take a string");
  const std::string_view bytes = text.bytes();
  const auto fits = [&](const Value& value) {
    if (value.text() == nullptr) return false;
    return at_end ? bytes.ends_with(value.text()->bytes())
                  : bytes.starts_with(value.text()->bytes());
  };
  if (const List* any = wanted->list()) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(wanted->weight()));
    return Value(std::any_of(any->items.begin(), any->items.end(), fits));
  }
  if (wanted->text() == nullptr) {
    return absl::InvalidArgumentError("startswith and endswith take a string");
  }
  return Value(fits(*wanted));
}

Result replace(const Text& text, const Arguments& arguments, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(const Text* from, text_argument(arguments, 0, "old"));
  TESSERA_ASSIGN_OR_RETURN(const Text* to, text_argument(arguments, 1, "new"));
  TESSERA_ASSIGN_OR_RETURN(const size_t limit, limit_argument(arguments, 2, "count"));
  if (from->empty()) return absl::InvalidArgumentError("replace: nothing to look for");
  TESSERA_RETURN_IF_ERROR(
      rendering.charge(text.cost() + 2 * find_cost(text.bytes(), from->bytes())));
  size_t found = 0;
  for (size_t at = 0; found < limit; ++found) {
    at = find_bytes(text.bytes(), from->bytes(), at);
    if (at == std::string::npos) break;
    at += from->size();
    TESSERA_RETURN_IF_ERROR(rendering.charge(to->cost() + kCopyCost));
  }
  return Value(text.replace(from->bytes(), *to, limit));
}

Result without(const Text& text, const Arguments& arguments, bool at_end) {
  TESSERA_ASSIGN_OR_RETURN(const Text* part, text_argument(arguments, 0, "prefix"));
  const std::string_view bytes = text.bytes();
  if (at_end && bytes.ends_with(part->bytes())) {
    return Value(text.slice(0, text.size() - part->size()));
  }
  if (!at_end && bytes.starts_with(part->bytes())) {
    return Value(text.slice(part->size(), text.size()));
  }
  return Value(text);
}

Result find(const Text& text, const Arguments& arguments, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(const Text* part, text_argument(arguments, 0, "sub"));
  TESSERA_RETURN_IF_ERROR(rendering.charge(2 * find_cost(text.bytes(), part->bytes())));
  const size_t at = find_bytes(text.bytes(), part->bytes());
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(count_characters(std::string_view(text.bytes()).substr(0, at)));
}

Result join(const Text& separator, const Arguments& arguments, Rendering& rendering) {
  return apply_filter("join", arguments.positional.empty() ? Value() : arguments.positional[0],
                      Arguments{{Value(separator)}, {}}, rendering);
}

Result text_method(std::string_view name, const Text& text, const Arguments& arguments,
                   Rendering& rendering) {
  if (name == "split") return split(text, arguments, rendering);
  if (name == "splitlines") return split_lines(text, rendering);
  if (name == "replace") return replace(text, arguments, rendering);
  if (name == "join") return join(text, arguments, rendering);
  if (name == "format") return format_text(text, arguments, rendering);
  TESSERA_RETURN_IF_ERROR(rendering.charge(text.cost()));
  if (name == "strip") return strip(text, arguments, rendering, true, true);
  if (name == "lstrip") return strip(text, arguments, rendering, true, false);
  if (name == "rstrip") return strip(text, arguments, rendering, false, true);
  if (name == "startswith") return matches(text, arguments, rendering, false);
  if (name == "endswith") return matches(text, arguments, rendering, true);
  if (name == "removeprefix") return without(text, arguments, false);
  if (name == "removesuffix") return without(text, arguments, true);
  if (name == "upper") return Value(with_case(text, LetterCase::upper, is_no_letter));
  if (name == "lower") return Value(with_case(text, LetterCase::lower, is_no_letter));
  if (name == "capitalize") return Value(with_case(text, LetterCase::capital, is_no_letter));
  if (name == "title") return Value(with_case(text, LetterCase::title, is_no_letter));
  if (name == "find") return find(text, arguments, rendering);
  return absl::InvalidArgumentError("a string has no method \"" + std::string(name) + "\"");
}

Result dict_method(std::string_view name, const Dict& dict, const Arguments& arguments,
                   Rendering& rendering) {
  if (name == "get") {
    const Value* key = arguments.find(0, "key");
    if (key == nullptr) return absl::InvalidArgumentError("get takes a key");
    TESSERA_RETURN_IF_ERROR(rendering.charge(key->text() == nullptr ? 0 : key->weight()));
    const Value* value = dict.find(*key);
    if (value != nullptr) return *value;
    const Value* other = arguments.find(1, "default");
    return other == nullptr ? Value(None{}) : *other;
  }
  if (name != "keys" && name != "values" && name != "items") {
    return absl::InvalidArgumentError("a dict has no method \"" + std::string(name) + "\"");
  }
  TESSERA_RETURN_IF_ERROR(rendering.charge(dict.extent.weight + dict.items.size() * kItemCost));
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) {
    if (name == "keys") {
      items.push_back(dict.key(key));
    } else if (name == "values") {
      items.push_back(value);
    } else {
      TESSERA_ASSIGN_OR_RETURN(Value pair, Value::list({dict.key(key), value}));
      items.push_back(std::move(pair));
    }
  }
  return Value::list(std::move(items));
}

constexpr std::string_view kMethods[] = {
    "strip",    "lstrip",       "rstrip",       "split",  "splitlines", "startswith",
    "endswith", "removeprefix", "upper",        "lower",  "capitalize", "title",
    "replace",  "find",         "removesuffix", "join",   "get",        "items",
    "keys",     "values",       "format",       "append", "pop"};

}  // namespace

Text with_case(const Text& text, LetterCase letter_case, bool (*begins_word_after)(char)) {
  std::string bytes = text.bytes();
  bool first = true;
  for (char& c : bytes) {
    const char original = c;
    const bool upper =
        letter_case == LetterCase::upper || (letter_case != LetterCase::lower && first);
    if (upper && is_lower(c)) c = static_cast<char>(c - 'a' + 'A');
    if (!upper && is_upper(c)) c = static_cast<char>(c - 'A' + 'a');
    first = letter_case == LetterCase::title && begins_word_after(original);
  }
  return text.with_bytes(std::move(bytes));
}

bool known_method(std::string_view name) {
  return std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
}

absl::StatusOr<Value> call_method(std::string_view name, const Value& object,
                                  const Arguments& arguments, Rendering& rendering) {
  if (object.text() != nullptr) return text_method(name, *object.text(), arguments, rendering);
  if (object.dict() != nullptr) return dict_method(name, *object.dict(), arguments, rendering);
  if (object.is_undefined()) {
    return absl::InvalidArgumentError("\"" + object.undefined_name() + "\" is undefined");
  }
  return absl::InvalidArgumentError(std::string(object.type_name()) + " has no method \"" +
                                    std::string(name) + "\"");
}

}  // namespace tessera::jinja
