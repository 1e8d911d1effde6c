#include "text/jinja/ordering.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "base/status_macros.h"

namespace tessera::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// An item, and its values to compare: several values for attribute="a,b".
struct Ranked {
  std::vector<Value> keys;
  Value item;
};

bool no_word_begins_after(char) {
  return false;
}

Value key_of(const Value& value, bool case_sensitive) {
  if (case_sensitive || value.text() == nullptr) return value;
  return Value(with_case(*value.text(), LetterCase::lower, no_word_begins_after));
}

bool is_true(const Value* value) {
  return value != nullptr && value->truthy();
}

// Charges for comparing values of this weight `times` times each.
absl::Status charge_for(const std::vector<Ranked>& items, size_t times, Rendering& rendering) {
  for (const Ranked& item : items) {
    for (const Value& key : item.keys) {
      TESSERA_RETURN_IF_ERROR(rendering.charge(key.weight() * times));
    }
  }
  return absl::OkStatus();
}

// Errors: InvalidArgument for a path that is not a string or an integer.
absl::StatusOr<std::vector<Ranked>> ranked(const Value& input, const Value* attribute,
                                           bool case_sensitive, Rendering& rendering) {
  std::vector<Value> paths;
  if (attribute != nullptr && attribute->text() != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        const Value parts,
        call_method("split", *attribute, Arguments{{Value(Text(","))}, {}}, rendering));
    paths = parts.list()->items;
  } else if (attribute != nullptr && !attribute->is_none()) {
    paths = {*attribute};
  }
  TESSERA_ASSIGN_OR_RETURN(const auto items, items_of(input, rendering));
  std::vector<Ranked> made;
  for (const Value& item : items) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(kItemCost));
    Ranked next{{}, item};
    if (paths.empty()) {
      TESSERA_RETURN_IF_ERROR(rendering.charge(item.text() == nullptr ? 0 : item.weight()));
      next.keys.push_back(key_of(item, case_sensitive));
    }
    for (const Value& path : paths) {
      TESSERA_ASSIGN_OR_RETURN(const Value value, attribute_path(item, path, rendering));
      TESSERA_RETURN_IF_ERROR(rendering.charge(value.text() == nullptr ? 0 : value.weight()));
      next.keys.push_back(key_of(value, case_sensitive));
    }
    made.push_back(std::move(next));
  }
  return made;
}

absl::StatusOr<int> compare_keys(const Ranked& a, const Ranked& b) {
  for (size_t i = 0; i < a.keys.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const int order, compare(a.keys[i], b.keys[i]));
    if (order != 0) return order;
  }
  return 0;
}

// Sorts; equal items keep their order.
Result sort_ranked(std::vector<Ranked> items, bool reverse, Rendering& rendering) {
  TESSERA_RETURN_IF_ERROR(charge_for(items, std::bit_width(items.size()), rendering));
  absl::Status failed;
  std::stable_sort(items.begin(), items.end(), [&](const Ranked& a, const Ranked& b) {
    const absl::StatusOr<int> order = compare_keys(a, b);
    if (!order.ok()) {
      failed = order.status();
      return false;
    }
    return reverse ? *order > 0 : *order < 0;
  });
  TESSERA_RETURN_IF_ERROR(failed);
  std::vector<Value> values;
  for (Ranked& item : items) values.push_back(std::move(item.item));
  return Value::list(std::move(values));
}

// The first item than which no other is smaller (`sign` 1) or larger (-1).
Result extreme(const Value& input, const Arguments& arguments, int sign, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(const auto items,
                           ranked(input, arguments.find(1, "attribute"),
                                  is_true(arguments.find(0, "case_sensitive")), rendering));
  if (items.empty()) return Value(Undefined{"item of an empty list"});
  TESSERA_RETURN_IF_ERROR(charge_for(items, 1, rendering));
  const Ranked* best = &items.front();
  for (const Ranked& item : items) {
    TESSERA_ASSIGN_OR_RETURN(const int order, compare_keys(item, *best));
    if (order * sign < 0) best = &item;
  }
  return best->item;
}

}  // namespace

Result dictsort(const Value& input, const Arguments& arguments, Rendering& rendering) {
  if (input.dict() == nullptr) return absl::InvalidArgumentError("dictsort takes a dict");
  const Value* by = arguments.find(1, "by");
  const std::string which = by == nullptr           ? "key"
                            : by->text() == nullptr ? ""
                                                    : by->text()->bytes();
  if (which != "key" && which != "value") {
    return absl::InvalidArgumentError("dictsort: by is \"key\" or \"value\"");
  }
  TESSERA_ASSIGN_OR_RETURN(const Value pairs, call_method("items", input, {}, rendering));
  const Value position(int64_t{which == "key" ? 0 : 1});
  TESSERA_ASSIGN_OR_RETURN(
      auto items,
      ranked(pairs, &position, is_true(arguments.find(0, "case_sensitive")), rendering));
  return sort_ranked(std::move(items), is_true(arguments.find(2, "reverse")), rendering);
}

Result sorted(const Value& input, const Arguments& arguments, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(auto items,
                           ranked(input, arguments.find(2, "attribute"),
                                  is_true(arguments.find(1, "case_sensitive")), rendering));
  return sort_ranked(std::move(items), is_true(arguments.find(0, "reverse")), rendering);
}

Result unique(const Value& input, const Arguments& arguments, Rendering& rendering) {
  TESSERA_ASSIGN_OR_RETURN(auto items,
                           ranked(input, arguments.find(1, "attribute"),
                                  is_true(arguments.find(0, "case_sensitive")), rendering));
  TESSERA_RETURN_IF_ERROR(charge_for(items, 2, rendering));
  std::unordered_map<size_t, std::vector<const Value*>> first;  // by hash_of()
  std::vector<Value> values;
  for (const Ranked& item : items) {
    const Value& key = item.keys.front();
    std::vector<const Value*>& alike = first[hash_of(key)];
    TESSERA_RETURN_IF_ERROR(rendering.charge(kItemCost + alike.size() * key.weight()));
    if (std::none_of(alike.begin(), alike.end(), [&](const Value* v) { return equal(key, *v); })) {
      alike.push_back(&key);
      values.push_back(item.item);
    }
  }
  return Value::list(std::move(values));
}

Result smallest(const Value& input, const Arguments& arguments, Rendering& rendering) {
  return extreme(input, arguments, 1, rendering);
}

Result largest(const Value& input, const Arguments& arguments, Rendering& rendering) {
  return extreme(input, arguments, -1, rendering);
}

}  // namespace tessera::jinja
