#include "models/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/status_macros.h"

namespace tessera::jinja {
namespace {

absl::Status grow(Extent& whole, const Value& part, size_t key_bytes) {
  const Extent extent = part.extent();
  whole.depth = std::max(whole.depth, extent.depth + 1);
  whole.weight += extent.weight + key_bytes;
  if (whole.depth > Value::kMaxDepth) {
    return absl::InvalidArgumentError("lists and dicts are nested more than " +
                                      std::to_string(Value::kMaxDepth) + " deep");
  }
  if (whole.weight > Value::kMaxWeight) {
    return absl::InvalidArgumentError("a list or dict of more than " +
                                      std::to_string(Value::kMaxWeight) + " bytes");
  }
  return absl::OkStatus();
}

std::string printed_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

// Python's repr() of a string.
Text quoted(const Text& text) {
  const bool single =
      text.bytes().find('\'') == std::string::npos || text.bytes().find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  Text result(std::string(1, quote));
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    if (c == quote || c == '\\') result.append("\\");
    if (c == '\n' || c == '\t' || c == '\r') {
      result.append(c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r");
    } else {
      result.append(text.slice(i, i + 1));
    }
  }
  result.append(std::string_view(&quote, 1));
  return result;
}

Text represented(const Value& value) {
  if (value.is_undefined()) return Text("Undefined");
  return value.text() != nullptr ? quoted(*value.text()) : printed(value);
}

Text printed_list(const List& list) {
  Text text("[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) text.append(", ");
    text.append(represented(list.items[i]));
  }
  text.append("]");
  return text;
}

Text printed_dict(const Dict& dict) {
  Text text("{");
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) text.append(", ");
    text.append(represented(dict.key(dict.items[i].first)));
    text.append(": ");
    text.append(represented(dict.items[i].second));
  }
  text.append("}");
  return text;
}

int sign(double a, double b) {
  return a < b ? -1 : (a > b ? 1 : 0);
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name.bytes() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (integer_keys) return key.is_integer() ? find(std::to_string(*key.integer())) : nullptr;
  return key.text() != nullptr ? find(key.text()->bytes()) : nullptr;
}

Value Dict::key(const Text& name) const {
  return integer_keys ? Value(int64_t{std::stoll(name.bytes())}) : Value(name);
}

absl::StatusOr<Value> Value::list(std::vector<Value> items) {
  List list{std::move(items), {}};
  for (const Value& item : list.items) TESSERA_RETURN_IF_ERROR(grow(list.extent, item, 0));
  return Value(std::make_shared<List>(std::move(list)));  // not const: see append()
}

// Returns: the list, to change it.
absl::StatusOr<List*> Value::own_list() {
  const auto& shared = std::get<std::shared_ptr<const List>>(data_);
  if (shared.use_count() != 1) {  // the extent of a value that holds it counts it as it is
    return absl::InvalidArgumentError("a list that another value holds too cannot be changed");
  }
  return const_cast<List*>(shared.get());
}

absl::StatusOr<Value> Value::append(const std::vector<Value>& arguments) {
  if (arguments.size() != 1) return absl::InvalidArgumentError("append takes one item");
  TESSERA_ASSIGN_OR_RETURN(List* const list, own_list());
  TESSERA_RETURN_IF_ERROR(grow(list->extent, arguments[0], 0));
  list->items.push_back(arguments[0]);
  return Value(None{});
}

absl::StatusOr<Value> Value::pop(const std::vector<Value>& arguments) {
  if (arguments.size() > 1 || (arguments.size() == 1 && !arguments[0].is_integer())) {
    return absl::InvalidArgumentError("pop takes an index");
  }
  TESSERA_ASSIGN_OR_RETURN(List* const list, own_list());
  const auto size = static_cast<int64_t>(list->items.size());
  int64_t index = arguments.empty() ? -1 : *arguments[0].integer();
  index += index < 0 ? size : 0;
  if (index < 0 || index >= size) {
    return absl::InvalidArgumentError("pop: the list has " + std::to_string(size) + " items");
  }
  const auto at = list->items.begin() + index;
  Value item = std::move(*at);
  list->items.erase(at);
  list->extent.weight -= item.weight();  // the depth stays a bound
  return item;
}

absl::StatusOr<Value> Value::dict(Dict dict) {
  dict.extent = {};
  for (const auto& [name, value] : dict.items) {
    TESSERA_RETURN_IF_ERROR(grow(dict.extent, value, name.size()));
  }
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

Namespace* Value::space() const {
  auto* const* space = std::get_if<Namespace*>(&data_);
  return space == nullptr ? nullptr : *space;
}

std::optional<int64_t> Value::integer() const {
  if (const auto* value = std::get_if<int64_t>(&data_)) return *value;
  if (const auto* value = std::get_if<bool>(&data_)) return *value ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* value = std::get_if<double>(&data_)) return *value;
  if (const auto value = integer()) return static_cast<double>(*value);
  return std::nullopt;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return *number() != 0;
  if (text() != nullptr) return !text()->empty();
  if (list() != nullptr) return !list()->items.empty();
  if (dict() != nullptr) return !dict()->items.empty();
  return true;
}

Extent Value::extent() const {
  if (list() != nullptr) return list()->extent;
  if (dict() != nullptr) return dict()->extent;
  return {0, text() != nullptr ? text()->size() + 1 : size_t{1}};
}

const char* Value::type_name() const {
  constexpr const char* kNames[] = {"undefined", "none", "boolean", "integer",   "float",
                                    "string",    "list", "dict",    "namespace", "macro"};
  return kNames[data_.index()];
}

std::string Value::undefined_name() const {
  const auto* undefined = std::get_if<Undefined>(&data_);
  return undefined == nullptr ? std::string() : undefined->name;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.integer() == b.integer();
    return *a.number() == *b.number();
  }
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes() == b.text()->bytes();
  if (a.list() != nullptr && b.list() != nullptr) {
    const auto& x = a.list()->items;
    const auto& y = b.list()->items;
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), equal);
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    return std::all_of(a.dict()->items.begin(), a.dict()->items.end(), [&](const auto& item) {
      const Value* other = b.dict()->find(a.dict()->key(item.first));
      return other != nullptr && equal(item.second, *other);
    });
  }
  if (a.space() != nullptr || b.space() != nullptr) return a.space() == b.space();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

absl::StatusOr<int> compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return sign(*a.number(), *b.number());
    return *a.integer() < *b.integer() ? -1 : (*a.integer() > *b.integer() ? 1 : 0);
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    return sign(a.text()->bytes().compare(b.text()->bytes()), 0);
  }
  return absl::InvalidArgumentError(std::string("cannot order ") + a.type_name() + " and " +
                                    b.type_name());
}

absl::StatusOr<bool> contains(const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    if (item.text() != nullptr)
      return text->bytes().find(item.text()->bytes()) != std::string::npos;
    return absl::InvalidArgumentError(std::string("a string contains no ") + item.type_name());
  }
  if (const List* list = container.list()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& other) { return equal(item, other); });
  }
  if (const Dict* dict = container.dict()) {
    return dict->find(item) != nullptr;
  }
  if (container.is_undefined()) return false;
  return absl::InvalidArgumentError(std::string("\"in\" does not work on ") +
                                    container.type_name());
}

Text printed(const Value& value) {
  if (const Text* text = value.text()) return *text;
  if (value.is_undefined()) return {};
  if (value.is_none()) return Text("None");
  if (value.is_bool()) return Text(value.truthy() ? "True" : "False");
  if (value.is_integer()) return Text(std::to_string(*value.integer()));
  if (value.is_float()) return Text(printed_float(*value.number()));
  if (const List* list = value.list()) return printed_list(*list);
  if (const Dict* dict = value.dict()) return printed_dict(*dict);
  return Text(std::string("<") + value.type_name() + ">");
}

}  // namespace tessera::jinja
