#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "text/jinja/builtins.h"
#include "text/jinja/json_value.h"
#include "text/jinja/ordering.h"

namespace tessera::jinja {
namespace {

using Result = absl::StatusOr<Value>;

bool begins_title_word(char c) {
  return std::string_view("-({[< \t\n\r\v\f").find(c) != std::string_view::npos;
}
bool never(char) {
  return false;
}

Result trim(const Value& input, const Arguments& arguments, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(Text text, print(input, rendering));
  return call_method("strip", Value(std::move(text)), arguments, rendering);
}

Result length(const Value& input, const Arguments&, Rendering& rendering) {
  if (const Text* text = input.text()) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(text->size()));
    return Value(count_characters(text->bytes()));
  }
  if (input.list() != nullptr) return Value(static_cast<int64_t>(input.list()->items.size()));
  if (input.dict() != nullptr) return Value(static_cast<int64_t>(input.dict()->items.size()));
  if (input.is_undefined()) return Value(int64_t{0});
  return absl::InvalidArgumentError(std::string(input.type_name()) + " has no length");
}

template <LetterCase kCase, bool (*kBeginsWord)(char)>
Result cased(const Value& input, const Arguments&, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(const Text text, print(input, rendering));
  TESSERA_RETURN_IF_ERROR(rendering.charge(text.size() * 2));
  return Value(with_case(text, kCase, kBeginsWord));
}

// Arguments of tojson as in transformers: indent, and by name only ensure_ascii, separators and
// sort_keys.
absl::StatusOr<JsonStyle> json_style(const Arguments& arguments) {
  JsonStyle style;
  for (const auto& [name, value] : arguments.named) {
    if (name == "ensure_ascii") {
      style.ensure_ascii = value.truthy();
    } else if (name == "sort_keys") {
      style.sort_keys = value.truthy();
    } else if (name == "separators" && !value.is_none()) {
      const List* both = value.list();
      if (both == nullptr || both->items.size() != 2 || both->items[0].text() == nullptr ||
          both->items[1].text() == nullptr || both->items[0].text()->size() > 32 ||
          both->items[1].text()->size() > 32) {
        return absl::InvalidArgumentError("tojson: separators are two short strings");
      }
      style.item_separator = both->items[0].text()->bytes();
      style.key_separator = both->items[1].text()->bytes();
    } else if (name != "indent" && name != "separators") {
      return absl::InvalidArgumentError("tojson: " + name + " is not supported");
    }
  }
  const Value* given = arguments.find(0, "indent");
  if (given != nullptr && !given->is_none()) {
    if (!given->is_integer() || *given->integer() < 0 || *given->integer() > 16) {
      return absl::InvalidArgumentError("tojson: indent is an integer from 0 to 16");
    }
    style.indent = static_cast<int>(*given->integer());
  }
  return style;
}

Result tojson(const Value& input, const Arguments& arguments, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(const JsonStyle style, json_style(arguments));
  size_t cost = 12 + (style.indent < 0 ? 0 : static_cast<size_t>(style.indent) * 8);
  cost += style.item_separator.size() + style.key_separator.size();
  cost *= style.ensure_ascii ? 2 : 1;
  TESSERA_RETURN_IF_ERROR(rendering.charge(input.weight() * cost));
  TESSERA_ASSIGN_OR_RETURN(Text text, to_json(input, style));
  return Value(std::move(text));
}

// The inverse of tojson. The values it reads count as text of a message.
Result from_json(const Value& input, const Arguments&, Rendering& rendering) {
  if (input.text() == nullptr) return absl::InvalidArgumentError("from_json takes a string");
  TESSERA_RETURN_IF_ERROR(rendering.charge(input.text()->size() * 32));
  absl::StatusOr<Value> value = parse_json_value(input.text()->bytes());
  if (!value.ok()) {
    return absl::InvalidArgumentError("from_json: " + std::string(value.status().message()));
  }
  return value;
}

Result join(const Value& input, const Arguments& arguments, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(const auto items, items_of(input, rendering));
  const Value* separator = arguments.find(0, "d");
  const Value* attribute = arguments.find(1, "attribute");
  const Text between = separator == nullptr ? Text() : printed(*separator);
  Text result;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) result.append(between);
    Value item = items[i];
    if (attribute != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(item, member(items[i], *attribute, rendering));
    }
    TESSERA_ASSIGN_OR_RETURN(const Text text, print(item, rendering));
    TESSERA_RETURN_IF_ERROR(rendering.charge(between.cost() + kCopyCost));
    result.append(text);
  }
  return Value(std::move(result));
}

Result default_value(const Value& input, const Arguments& arguments, Rendering&) {
  const Value* other = arguments.find(0, "default_value");
  const Value* boolean = arguments.find(1, "boolean");
  const bool falsy = boolean != nullptr && boolean->truthy() && !input.truthy();
  if (!input.is_undefined() && !falsy) return input;
  return other == nullptr ? Value(Text()) : *other;
}

Result list(const Value& input, const Arguments&, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(auto items, items_of(input, rendering));
  return Value::list(std::move(items));
}

template <bool kLast>
Result end_item(const Value& input, const Arguments&, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(const auto items, items_of(input, rendering));
  if (items.empty()) return Value(Undefined{kLast ? "last item" : "first item"});
  return kLast ? items.back() : items.front();
}

Result reverse(const Value& input, const Arguments&, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(auto items, items_of(input, rendering));
  std::reverse(items.begin(), items.end());
  if (input.text() == nullptr) return Value::list(std::move(items));
  Text text;
  for (const Value& item : items) text.append(*item.text());
  return Value(std::move(text));
}

Result replace(const Value& input, const Arguments& arguments, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(Text text, print(input, rendering));
  return call_method("replace", Value(std::move(text)), arguments, rendering);
}

Result string(const Value& input, const Arguments&, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(Text text, print(input, rendering));
  return Value(std::move(text));
}

template <typename Number>
std::optional<Number> parsed(const Text& text) {
  const Text trimmed = text.strip("", true, true);
  const char* begin = trimmed.bytes().data();
  const char* end = begin + trimmed.size();
  if (begin != end && *begin == '+') ++begin;
  Number number{};
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

Result to_integer(const Value& input, const Arguments& arguments, Rendering& rendering) {
  TESSERA_RETURN_IF_ERROR(rendering.charge(input.weight() * 4));
  const Value* other = arguments.find(0, "default");
  if (input.is_integer() || input.is_bool()) return Value(*input.integer());
  std::optional<double> number = input.number();
  if (input.text() != nullptr) {
    if (const auto integer = parsed<int64_t>(*input.text())) return Value(*integer);
    number = parsed<double>(*input.text());
  }
  constexpr double kLimit = 9.0e18;
  if (number && std::abs(*number) < kLimit) return Value(static_cast<int64_t>(*number));
  return other == nullptr ? Value(int64_t{0}) : *other;
}

Result to_float(const Value& input, const Arguments& arguments, Rendering& rendering) {
  TESSERA_RETURN_IF_ERROR(rendering.charge(input.weight() * 4));
  const Value* other = arguments.find(0, "default");
  if (const auto number = input.number()) return Value(*number);
  if (input.text() != nullptr) {
    if (const auto number = parsed<double>(*input.text())) return Value(*number);
  }
  return other == nullptr ? Value(0.0) : *other;
}

Result absolute(const Value& input, const Arguments&, Rendering&) {
  if (input.is_float()) return Value(std::abs(*input.number()));
  const auto integer = input.integer();
  if (!integer || *integer == std::numeric_limits<int64_t>::min()) {
    return absl::InvalidArgumentError("abs takes a number");
  }
  return Value(std::abs(*integer));
}

Result items(const Value& input, const Arguments&, Rendering& rendering) {
  if (input.is_undefined()) return Value::list({});
  if (input.dict() == nullptr) return absl::InvalidArgumentError("items takes a dict");
  return call_method("items", input, {}, rendering);
}

Result indent(const Value& input, const Arguments& arguments, Rendering& rendering) {
  const Value* width = arguments.find(0, "width");
  const Value* first = arguments.find(1, "first");
  const Value* blank = arguments.find(2, "blank");
  if (width != nullptr && !width->is_integer() && width->text() == nullptr) {
    return absl::InvalidArgumentError("indent takes a width");
  }
  const int64_t blanks = width == nullptr ? 4 : width->integer().value_or(0);
  if (blanks < 0 || blanks > 256) return absl::InvalidArgumentError("indent: width out of range");
  const Text prefix = width != nullptr && width->text() != nullptr
                          ? *width->text()
                          : Text(std::string(static_cast<size_t>(blanks), ' '));
  TESSERA_ASSIGN_OR_RETURN(const Text text, print(input, rendering));
  Text result;
  size_t at = 0;
  while (true) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(prefix.cost() + kItemCost));
    const size_t end = std::min(text.bytes().find('\n', at), text.size());
    const bool wanted = at == 0 ? first != nullptr && first->truthy()
                                : end > at || (blank != nullptr && blank->truthy());
    if (wanted) result.append(prefix);
    result.append(text.slice(at, std::min(end + 1, text.size())));
    if (end == text.size()) return Value(std::move(result));
    at = end + 1;
  }
}

// select and reject keep the items that pass (or fail) a test. selectattr and rejectattr test an
// attribute of each item.
template <bool kByAttribute, bool kWanted>
Result choose(const Value& input, const Arguments& arguments, Rendering& rendering) {
  if (!input.truthy()) return Value::list({});  // none, too
  TESSERA_ASSIGN_OR_RETURN(const auto all, items_of(input, rendering));
  const auto& given = arguments.positional;
  const size_t test_at = kByAttribute ? 1 : 0;
  if (given.size() < test_at) return absl::InvalidArgumentError("selectattr takes an attribute");
  const Text* test = given.size() > test_at ? given[test_at].text() : nullptr;
  if (given.size() > test_at && (test == nullptr || !known_test(test->bytes()))) {
    return absl::InvalidArgumentError("unknown test \"" + printed(given[test_at]).bytes() + "\"");
  }
  Arguments rest;
  if (test != nullptr) {
    rest.positional.assign(given.begin() + static_cast<std::ptrdiff_t>(test_at) + 1, given.end());
  }
  std::vector<Value> chosen;
  for (const Value& item : all) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(kCopyCost));
    Value value = item;
    if (kByAttribute) {
      TESSERA_ASSIGN_OR_RETURN(value, attribute_path(item, given[0], rendering));
    }
    bool passes = value.truthy();
    if (test != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(passes, apply_test(test->bytes(), value, rest, rendering));
    }
    if (passes == kWanted) chosen.push_back(item);
  }
  return Value::list(std::move(chosen));
}

// map("filter", arguments...) or map(attribute="name", default=value)
Result map(const Value& input, const Arguments& arguments, Rendering& rendering) {
  if (!input.truthy()) return Value::list({});
  TESSERA_ASSIGN_OR_RETURN(const auto all, items_of(input, rendering));
  const Value* attribute = arguments.find(std::string::npos, "attribute");
  const Value* other = arguments.find(std::string::npos, "default");
  const Text* filter = arguments.positional.empty() ? nullptr : arguments.positional[0].text();
  if (attribute == nullptr && (filter == nullptr || !known_filter(filter->bytes()))) {
    return absl::InvalidArgumentError("map takes a filter's name or attribute=");
  }
  if (filter != nullptr && filter->bytes() == "map") {
    return absl::InvalidArgumentError("map does not take itself");
  }
  Arguments rest;
  if (filter != nullptr) {
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
    rest.named = arguments.named;
  }
  std::vector<Value> mapped;
  for (const Value& item : all) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(kItemCost / 2));
    TESSERA_ASSIGN_OR_RETURN(
        Value value, attribute != nullptr ? attribute_path(item, *attribute, rendering)
                                          : apply_filter(filter->bytes(), item, rest, rendering));
    if (value.is_undefined() && other != nullptr) {
      value = *other;
    }
    mapped.push_back(std::move(value));
  }
  return Value::list(std::move(mapped));
}

Result unchanged(const Value& input, const Arguments&, Rendering&) {
  return input;
}

struct Filter {
  std::string_view name;
  Result (*apply)(const Value&, const Arguments&, Rendering&);
};

constexpr Filter kFilters[] = {{"trim", trim},
                               {"length", length},
                               {"count", length},
                               {"upper", cased<LetterCase::upper, never>},
                               {"lower", cased<LetterCase::lower, never>},
                               {"capitalize", cased<LetterCase::capital, never>},
                               {"title", cased<LetterCase::title, begins_title_word>},
                               {"tojson", tojson},
                               {"from_json", from_json},
                               {"dictsort", dictsort},
                               {"sort", sorted},
                               {"unique", unique},
                               {"min", smallest},
                               {"max", largest},
                               {"join", join},
                               {"default", default_value},
                               {"d", default_value},
                               {"list", list},
                               {"first", end_item<false>},
                               {"last", end_item<true>},
                               {"reverse", reverse},
                               {"replace", replace},
                               {"string", string},
                               {"int", to_integer},
                               {"float", to_float},
                               {"abs", absolute},
                               {"items", items},
                               {"indent", indent},
                               {"select", choose<false, true>},
                               {"reject", choose<false, false>},
                               {"selectattr", choose<true, true>},
                               {"rejectattr", choose<true, false>},
                               {"map", map},
                               {"safe", unchanged}};

const Filter* find_filter(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const Filter& filter) { return filter.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace

absl::StatusOr<Value> attribute_path(const Value& item, const Value& path, Rendering& rendering) {
  if (path.text() == nullptr) return member(item, path, rendering);
  Value value = item;
  const std::string& names = path.text()->bytes();
  for (size_t at = 0; at <= names.size();) {
    const size_t dot = std::min(names.find('.', at), names.size());
    TESSERA_RETURN_IF_ERROR(rendering.charge(dot - at + kItemCost / 2));
    TESSERA_ASSIGN_OR_RETURN(value,
                             member(value, Value(Text(names.substr(at, dot - at))), rendering));
    at = dot + 1;
  }
  return value;
}

bool known_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

absl::StatusOr<Value> apply_filter(std::string_view name, const Value& input,
                                   const Arguments& arguments, Rendering& rendering) {
  return find_filter(name)->apply(input, arguments, rendering);
}

}  // namespace tessera::jinja
