#include "text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "base/status_macros.h"

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

void print_float(double value, Text& out) {
  if (std::isnan(value)) return out.append("nan");
  if (std::isinf(value)) return out.append(value > 0 ? "inf" : "-inf");
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  const std::string_view digits(buffer, static_cast<size_t>(end - buffer));
  out.append(digits);
  if (digits.find_first_of(".en") == std::string_view::npos) out.append(".0");
}

void print_integer(int64_t value, Text& out) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  out.append(std::string_view(buffer, static_cast<size_t>(end - buffer)));
}

// Python's repr() of a string.
void quote(const Text& text, Text& out) {
  const bool single =
      text.bytes().find('\'') == std::string::npos || text.bytes().find('"') != std::string::npos;
  const char mark = single ? '\'' : '"';
  out.append(std::string_view(&mark, 1));
  size_t plain = 0;  // text from here on is copied
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    const bool blank = c == '\n' || c == '\t' || c == '\r';
    if (c != mark && c != '\\' && !blank) continue;
    out.append(text.slice(plain, i));
    out.append(c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : "\\");
    plain = blank ? i + 1 : i;
  }
  out.append(text.slice(plain, text.size()));
  out.append(std::string_view(&mark, 1));
}

void print_to(const Value& value, Text& out);

// Prints an item of a list or a dict.
void represent(const Value& value, Text& out) {
  if (value.is_undefined()) return out.append("Undefined");
  if (const Text* text = value.text()) return quote(*text, out);
  print_to(value, out);
}

void print_list(const List& list, Text& out) {
  out.append("[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ");
    represent(list.items[i], out);
  }
  out.append("]");
}

void print_dict(const Dict& dict, Text& out) {
  out.append("{");
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out.append(", ");
    represent(dict.key(dict.items[i].first), out);
    out.append(": ");
    represent(dict.items[i].second, out);
  }
  out.append("}");
}

void print_to(const Value& value, Text& out) {
  if (const Text* text = value.text()) return out.append(*text);
  if (value.is_undefined()) return;
  if (value.is_none()) return out.append("None");
  if (value.is_bool()) return out.append(value.truthy() ? "True" : "False");
  if (value.is_integer()) return print_integer(*value.integer(), out);
  if (value.is_float()) return print_float(*value.number(), out);
  if (const List* list = value.list()) return print_list(*list, out);
  if (const Dict* dict = value.dict()) return print_dict(*dict, out);
  out.append("<");
  out.append(value.type_name());
  out.append(">");
}

constexpr size_t kFewItems = 16;  // of a dict: compared one by one

bool few_and_different(const Dict& dict) {
  if (dict.items.size() > kFewItems) return false;
  for (size_t i = 0; i < dict.items.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (dict.items[i].first.bytes() == dict.items[j].first.bytes()) return false;
    }
  }
  return true;
}

// Keeps the last value of each name, at the place of the first. Fills Dict::by_name.
void index_names(Dict& dict) {
  std::vector<uint32_t>& order = dict.by_name;
  order.clear();
  if (few_and_different(dict)) return;
  order.resize(dict.items.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto name = [&](uint32_t at) -> const std::string& { return dict.items[at].first.bytes(); };
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return name(a) < name(b); });
  std::vector<bool> again(order.size());
  for (size_t i = order.size() - 1; i > 0; --i) {
    if (name(order[i]) != name(order[i - 1])) continue;
    dict.items[order[i - 1]].second = std::move(dict.items[order[i]].second);
    again[order[i]] = true;
  }
  if (std::find(again.begin(), again.end(), true) == again.end()) return;
  std::vector<std::pair<Text, Value>> items;
  for (size_t i = 0; i < again.size(); ++i) {
    if (!again[i]) items.push_back(std::move(dict.items[i]));
  }
  dict.items = std::move(items);
  index_names(dict);
}

size_t mixed(size_t a, size_t b) {
  return (a ^ (b + 0x9E3779B97F4A7C15U)) * 0xBF58476D1CE4E5B9U;
}

int sign(double a, double b) {
  return a < b ? -1 : (a > b ? 1 : 0);
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  if (!by_name.empty()) {
    const auto at = std::lower_bound(by_name.begin(), by_name.end(), key,
                                     [&](uint32_t position, std::string_view wanted) {
                                       return items[position].first.bytes() < wanted;
                                     });
    const bool found = at != by_name.end() && items[*at].first.bytes() == key;
    return found ? &items[*at].second : nullptr;
  }
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
  index_names(dict);
  for (const auto& [name, value] : dict.items) {
    TESSERA_RETURN_IF_ERROR(grow(dict.extent, value, kKeyWeight + name.cost()));
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
  return {0, kValueWeight + (text() != nullptr ? text()->cost() : 0)};
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

size_t hash_of(const Value& value) {
  if (value.is_number()) {
    const double number = *value.number();  // 1, 1.0 and true are equal
    return std::hash<double>()(number);
  }
  if (value.text() != nullptr) return std::hash<std::string>()(value.text()->bytes());
  size_t hash = value.is_none() ? 1 : 2;
  if (value.list() != nullptr) {
    for (const Value& item : value.list()->items) hash = mixed(hash, hash_of(item));
  } else if (value.dict() != nullptr) {
    for (const auto& [name, item] : value.dict()->items) {
      hash += mixed(std::hash<std::string>()(name.bytes()), hash_of(item));  // in any order
    }
  }
  return hash;
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
      return find_bytes(text->bytes(), item.text()->bytes()) != std::string::npos;
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
  Text text;
  print_to(value, text);
  return text;
}

}  // namespace tessera::jinja
