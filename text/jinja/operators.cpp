#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/builtins.h"

namespace tessera::jinja {
namespace {

absl::Status unsupported(std::string_view name, const Value& left, const Value& right) {
  return absl::InvalidArgumentError("\"" + std::string(name) + "\" does not work on " +
                                    left.type_name() + " and " + right.type_name());
}

absl::Status overflow() {
  return absl::InvalidArgumentError("integer overflow");
}

// Python rounds quotients down, and remainders have the sign of the divisor.
absl::StatusOr<Value> divide_integers(bool remainder, int64_t a, int64_t b) {
  if (b == 0) return absl::InvalidArgumentError("division by zero");
  if (b == -1) {
    if (remainder) return Value(int64_t{0});
    if (a == std::numeric_limits<int64_t>::min()) return overflow();
    return Value(-a);
  }
  const int64_t quotient = a / b;
  const int64_t rest = a % b;
  const bool down = rest != 0 && (rest < 0) != (b < 0);
  return Value(remainder ? (down ? rest + b : rest) : (down ? quotient - 1 : quotient));
}

absl::StatusOr<Value> integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base >= -1 && base <= 1) exponent = exponent % 2 + (base == 0 && exponent > 0 ? 2 : 0);
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return overflow();
  }
  return Value(result);
}

absl::StatusOr<Value> integers(std::string_view name, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (name == "//") return divide_integers(false, a, b);
  if (name == "%") return divide_integers(true, a, b);
  if (name == "**" && b >= 0) return integer_power(a, b);
  if (name == "**") return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
  if (name == "+") overflows = __builtin_add_overflow(a, b, &result);
  if (name == "-") overflows = __builtin_sub_overflow(a, b, &result);
  if (name == "*") overflows = __builtin_mul_overflow(a, b, &result);
  if (overflows) return overflow();
  return Value(result);
}

absl::StatusOr<Value> floats(std::string_view name, double a, double b) {
  if (name == "+") return Value(a + b);
  if (name == "-") return Value(a - b);
  if (name == "*") return Value(a * b);
  if (name == "**") return Value(std::pow(a, b));
  if (b == 0) return absl::InvalidArgumentError("division by zero");
  if (name == "/") return Value(a / b);
  const double quotient = std::floor(a / b);
  return Value(name == "//" ? quotient : a - quotient * b);
}

absl::StatusOr<Value> concatenated(const Text& left, const Text& right, Rendering& rendering) {
  TESSERA_RETURN_IF_ERROR(rendering.charge(left.cost() + right.cost()));
  Text text = left;
  text.append(right);
  return Value(std::move(text));
}

absl::StatusOr<Value> repeated(const Text& text, int64_t times, Rendering& rendering) {
  const auto copies = static_cast<size_t>(std::max<int64_t>(text.empty() ? 0 : times, 0));
  size_t cost = 0;
  if (__builtin_mul_overflow(copies, text.cost(), &cost)) cost = SIZE_MAX;
  TESSERA_RETURN_IF_ERROR(rendering.charge(cost));
  Text result;
  for (size_t i = 0; i < copies; ++i) result.append(text);
  return Value(std::move(result));
}

// As in Python, a negative index or bound counts from the end.
int64_t from_end(int64_t index, int64_t size) {
  return index < 0 ? index + size : index;
}

absl::StatusOr<std::optional<int64_t>> bound(const Value* value) {
  if (value == nullptr || value->is_none()) return std::nullopt;
  if (value->is_integer() || value->is_bool()) return value->integer();
  return absl::InvalidArgumentError(std::string("a slice's bounds are integers, not ") +
                                    value->type_name());
}

// Returns: the indices that a slice selects from `size` items, in order.
absl::StatusOr<std::vector<size_t>> slice_indices(int64_t size, const Value* begin_value,
                                                  const Value* end_value, const Value* step_value) {
  TESSERA_ASSIGN_OR_RETURN(const auto begin_bound, bound(begin_value));
  TESSERA_ASSIGN_OR_RETURN(const auto end_bound, bound(end_value));
  TESSERA_ASSIGN_OR_RETURN(const auto step_bound, bound(step_value));
  const int64_t step = std::clamp(step_bound.value_or(1), -size - 1, size + 1);
  if (step == 0) return absl::InvalidArgumentError("a slice's step cannot be zero");
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? size : size - 1;
  int64_t begin = step > 0 ? low : high;
  int64_t end = step > 0 ? high : low;
  if (begin_bound) begin = std::clamp(from_end(*begin_bound, size), low, high);
  if (end_bound) end = std::clamp(from_end(*end_bound, size), low, high);
  std::vector<size_t> indices;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    indices.push_back(static_cast<size_t>(i));
  }
  return indices;
}

Value character(const Text& text, const std::vector<size_t>& starts, size_t index) {
  return Value(text.slice(starts[index], starts[index + 1]));
}

absl::StatusOr<Value> text_member(const Text& text, int64_t index) {
  const std::vector<size_t> starts = character_starts(text.bytes());
  const auto size = static_cast<int64_t>(starts.size() - 1);
  const int64_t at = from_end(index, size);
  if (at < 0 || at >= size) return Value(Undefined{"character " + std::to_string(index)});
  return character(text, starts, static_cast<size_t>(at));
}

}  // namespace

std::vector<size_t> character_starts(std::string_view text) {
  std::vector<size_t> starts;
  size_t at = 0;
  while (at < text.size()) {
    starts.push_back(at);
    at += next_utf8(text.substr(at)).size;
  }
  starts.push_back(at);
  return starts;
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !continues_utf8(c); });
}

absl::StatusOr<Value> binary(std::string_view name, const Value& left, const Value& right,
                             Rendering& rendering) {
  if (name == "~") {
    TESSERA_ASSIGN_OR_RETURN(const Text first, print(left, rendering));
    TESSERA_ASSIGN_OR_RETURN(const Text second, print(right, rendering));
    return concatenated(first, second, rendering);
  }
  if (name == "+" && left.text() != nullptr && right.text() != nullptr) {
    return concatenated(*left.text(), *right.text(), rendering);
  }
  if (name == "+" && left.list() != nullptr && right.list() != nullptr) {
    const std::vector<Value>& more = right.list()->items;
    TESSERA_RETURN_IF_ERROR(
        rendering.charge((left.list()->items.size() + more.size()) * kItemCost));
    std::vector<Value> items = left.list()->items;
    items.insert(items.end(), more.begin(), more.end());
    return Value::list(std::move(items));
  }
  if (name == "*" && left.text() != nullptr && right.is_integer()) {
    return repeated(*left.text(), *right.integer(), rendering);
  }
  if (!left.is_number() || !right.is_number()) return unsupported(name, left, right);
  if (left.is_float() || right.is_float() || name == "/") {
    return floats(name, *left.number(), *right.number());
  }
  return integers(name, *left.integer(), *right.integer());
}

absl::StatusOr<Text> print(const Value& value, Rendering& rendering) {
  // The quotes of a text within a list make it longer.
  TESSERA_RETURN_IF_ERROR(rendering.charge(value.weight() * (value.text() != nullptr ? 1 : 8)));
  return printed(value);
}

absl::Status charge_search(const Value& container, const Value& item, Rendering& rendering) {
  if (container.text() == nullptr || item.text() == nullptr) {
    return rendering.charge(container.weight());
  }
  return rendering.charge(find_cost(container.text()->bytes(), item.text()->bytes()));
}

absl::StatusOr<Value> member(const Value& object, const Value& key, Rendering& rendering) {
  if (object.space() != nullptr) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(object.space()->attributes.items.size()));
  }
  const Dict* dict = object.space() != nullptr ? &object.space()->attributes : object.dict();
  if (object.is_undefined()) {
    return absl::InvalidArgumentError("\"" + object.undefined_name() + "\" is undefined");
  }
  if (dict != nullptr) {
    const Value* value = dict->find(key);
    if (value != nullptr) return *value;
  }
  const std::optional<int64_t> index = key.integer();
  if (object.list() != nullptr && index) {
    const auto size = static_cast<int64_t>(object.list()->items.size());
    const int64_t at = from_end(*index, size);
    if (at >= 0 && at < size) return object.list()->items[static_cast<size_t>(at)];
  }
  if (object.text() != nullptr && index) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(object.text()->size() * 8));
    return text_member(*object.text(), *index);
  }
  TESSERA_ASSIGN_OR_RETURN(const Text name, print(key, rendering));
  return Value(Undefined{name.bytes()});
}

absl::StatusOr<Value> sliced(const Value& object, const Value* begin, const Value* end,
                             const Value* step, Rendering& rendering) {
  if (const List* list = object.list()) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(list->items.size() * kCopyCost));
    TESSERA_ASSIGN_OR_RETURN(
        const auto indices,
        slice_indices(static_cast<int64_t>(list->items.size()), begin, end, step));
    std::vector<Value> items;
    items.reserve(indices.size());
    for (const size_t i : indices) items.push_back(list->items[i]);
    return Value::list(std::move(items));
  }
  if (const Text* text = object.text()) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(text->size() * 8));
    const std::vector<size_t> starts = character_starts(text->bytes());
    TESSERA_ASSIGN_OR_RETURN(
        const auto indices,
        slice_indices(static_cast<int64_t>(starts.size() - 1), begin, end, step));
    if (indices.empty()) return Value(Text());
    if (indices.front() + indices.size() - 1 == indices.back()) {  // neighbours
      return Value(text->slice(starts[indices.front()], starts[indices.back() + 1]));
    }
    TESSERA_RETURN_IF_ERROR(rendering.charge(indices.size() * kCopyCost));
    Text result;
    for (const size_t i : indices) result.append(text->slice(starts[i], starts[i + 1]));
    return Value(std::move(result));
  }
  if (object.is_undefined()) {
    return absl::InvalidArgumentError("\"" + object.undefined_name() + "\" is undefined");
  }
  return absl::InvalidArgumentError(std::string("cannot slice ") + object.type_name());
}

absl::StatusOr<std::vector<Value>> items_of(const Value& value, Rendering& rendering) {
  const size_t cost = value.text() != nullptr   ? value.text()->size() * kItemCost
                      : value.list() != nullptr ? value.list()->items.size() * kCopyCost
                      : value.dict() != nullptr
                          ? value.weight() + value.dict()->items.size() * kItemCost
                          : kItemCost;
  TESSERA_RETURN_IF_ERROR(rendering.charge(cost));
  if (value.is_undefined()) return std::vector<Value>();
  if (value.list() != nullptr) return value.list()->items;
  std::vector<Value> items;
  if (const Dict* dict = value.dict()) {
    for (const auto& item : dict->items) items.push_back(dict->key(item.first));
    return items;
  }
  if (const Text* text = value.text()) {
    const std::vector<size_t> starts = character_starts(text->bytes());
    for (size_t i = 0; i + 1 < starts.size(); ++i) items.push_back(character(*text, starts, i));
    return items;
  }
  return absl::InvalidArgumentError(std::string("cannot iterate over ") + value.type_name());
}

}  // namespace tessera::jinja
