#include <algorithm>

#include "base/status_macros.h"
#include "text/jinja/builtins.h"

namespace tessera::jinja {
namespace {

using Result = absl::StatusOr<bool>;

struct Test {
  std::string_view name;
  size_t arguments;
  Result (*apply)(const Value&, const Arguments&);
};

absl::StatusOr<int64_t> integer_of(const Value& value) {
  const std::optional<int64_t> integer = value.integer();
  if (integer) return *integer;
  return absl::InvalidArgumentError(std::string("expected an integer, not ") + value.type_name());
}

Result divisible(const Value& value, int64_t by) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t integer, integer_of(value));
  if (by == 0) return absl::InvalidArgumentError("division by zero");
  return by == -1 || integer % by == 0;
}

template <typename Holds>
Result ordered(const Value& a, const Arguments& arguments, Holds holds) {
  TESSERA_ASSIGN_OR_RETURN(const int order, compare(a, arguments.positional[0]));
  return holds(order);
}

bool is_iterable(const Value& v) {
  return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.is_undefined();
}

Result equals(const Value& v, const Arguments& a) {
  return equal(v, a.positional[0]);
}
Result differs(const Value& v, const Arguments& a) {
  return !equal(v, a.positional[0]);
}
Result below(const Value& v, const Arguments& a) {
  return ordered(v, a, [](int order) { return order < 0; });
}
Result at_most(const Value& v, const Arguments& a) {
  return ordered(v, a, [](int order) { return order <= 0; });
}
Result above(const Value& v, const Arguments& a) {
  return ordered(v, a, [](int order) { return order > 0; });
}
Result at_least(const Value& v, const Arguments& a) {
  return ordered(v, a, [](int order) { return order >= 0; });
}

constexpr Test kTests[] = {
    {"defined", 0, [](const Value& v, const Arguments&) -> Result { return !v.is_undefined(); }},
    {"undefined", 0, [](const Value& v, const Arguments&) -> Result { return v.is_undefined(); }},
    {"none", 0, [](const Value& v, const Arguments&) -> Result { return v.is_none(); }},
    {"string", 0, [](const Value& v, const Arguments&) -> Result { return v.text() != nullptr; }},
    {"mapping", 0, [](const Value& v, const Arguments&) -> Result { return v.dict() != nullptr; }},
    {"iterable", 0, [](const Value& v, const Arguments&) -> Result { return is_iterable(v); }},
    {"sequence", 0, [](const Value& v, const Arguments&) -> Result { return is_iterable(v); }},
    {"number", 0, [](const Value& v, const Arguments&) -> Result { return v.is_number(); }},
    {"integer", 0, [](const Value& v, const Arguments&) -> Result { return v.is_integer(); }},
    {"float", 0, [](const Value& v, const Arguments&) -> Result { return v.is_float(); }},
    {"boolean", 0, [](const Value& v, const Arguments&) -> Result { return v.is_bool(); }},
    {"true", 0,
     [](const Value& v, const Arguments&) -> Result { return v.is_bool() && v.truthy(); }},
    {"false", 0,
     [](const Value& v, const Arguments&) -> Result { return v.is_bool() && !v.truthy(); }},
    {"callable", 0,
     [](const Value& v, const Arguments&) -> Result { return v.macro() != nullptr; }},
    {"odd", 0,
     [](const Value& v, const Arguments&) -> Result {
       TESSERA_ASSIGN_OR_RETURN(const bool even, divisible(v, 2));
       return !even;
     }},
    {"even", 0, [](const Value& v, const Arguments&) -> Result { return divisible(v, 2); }},
    {"divisibleby", 1,
     [](const Value& v, const Arguments& a) -> Result {
       TESSERA_ASSIGN_OR_RETURN(const int64_t by, integer_of(a.positional[0]));
       return divisible(v, by);
     }},
    {"in", 1,
     [](const Value& v, const Arguments& a) -> Result { return contains(a.positional[0], v); }},
    {"equalto", 1, equals},
    {"eq", 1, equals},
    {"sameas", 1, equals},
    {"ne", 1, differs},
    {"lt", 1, below},
    {"lessthan", 1, below},
    {"le", 1, at_most},
    {"gt", 1, above},
    {"greaterthan", 1, above},
    {"ge", 1, at_least},
};

const Test* find_test(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTests), std::end(kTests),
                                   [&](const Test& test) { return test.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace

bool known_test(std::string_view name) {
  return find_test(name) != nullptr;
}

absl::StatusOr<bool> apply_test(std::string_view name, const Value& input,
                                const Arguments& arguments, Rendering& rendering) {
  TESSERA_RETURN_IF_ERROR(rendering.charge(kItemCost / 2));
  const Test& test = *find_test(name);
  if (arguments.positional.size() != test.arguments || !arguments.named.empty()) {
    return absl::InvalidArgumentError("test \"" + std::string(name) + "\" takes " +
                                      std::to_string(test.arguments) + " arguments");
  }
  if (name == "in") {
    TESSERA_RETURN_IF_ERROR(charge_search(arguments.positional[0], input, rendering));
  } else if (test.arguments == 1) {
    const size_t least = std::min(input.weight(), arguments.positional[0].weight());
    TESSERA_RETURN_IF_ERROR(rendering.charge(least));
  }
  return test.apply(input, arguments);
}

}  // namespace tessera::jinja
