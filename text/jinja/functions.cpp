#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "text/jinja/builtins.h"

namespace tessera::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result range(const Arguments& arguments, Rendering& rendering) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3) {
    return absl::InvalidArgumentError("range takes one to three integers");
  }
  for (const Value& value : given) {
    if (!value.is_integer() && !value.is_bool()) {
      return absl::InvalidArgumentError(std::string("range takes integers, not ") +
                                        value.type_name());
    }
  }
  const int64_t begin = given.size() > 1 ? *given[0].integer() : 0;
  const int64_t end = given.size() > 1 ? *given[1].integer() : *given[0].integer();
  const int64_t step = given.size() > 2 ? *given[2].integer() : 1;
  if (step == 0) return absl::InvalidArgumentError("range's step cannot be zero");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    TESSERA_RETURN_IF_ERROR(rendering.charge(kItemCost));
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(items));
}

Result make_namespace(const Arguments& arguments, Rendering& rendering) {
  TESSERA_RETURN_IF_ERROR(rendering.charge((arguments.named.size() + 1) * kItemCost));
  Dict attributes;
  if (!arguments.positional.empty()) {
    return absl::InvalidArgumentError("namespace takes named arguments");
  }
  for (const auto& [name, value] : arguments.named)
    attributes.items.emplace_back(Text(name), value);
  return rendering.make_namespace(std::move(attributes));
}

Result make_dict(const Arguments& arguments, Rendering& rendering) {
  TESSERA_RETURN_IF_ERROR(rendering.charge((arguments.named.size() + 1) * kItemCost));
  Dict dict;
  if (!arguments.positional.empty()) {
    return absl::InvalidArgumentError("dict takes named arguments");
  }
  for (const auto& [name, value] : arguments.named) dict.items.emplace_back(Text(name), value);
  return Value::dict(std::move(dict));
}

Result raise_exception(const Arguments& arguments, Rendering& rendering) {
  const Value* message = arguments.find(0, "message");
  if (message == nullptr) return absl::InvalidArgumentError("raise_exception");
  TESSERA_ASSIGN_OR_RETURN(const Text text, print(*message, rendering));
  return absl::InvalidArgumentError(text.bytes());
}

Result strftime_now(const Arguments& arguments, Rendering& rendering) {
  const Value* format = arguments.find(0, "format");
  if (format == nullptr || format->text() == nullptr || format->text()->size() > 256) {
    return absl::InvalidArgumentError("strftime_now takes a format of at most 256 bytes");
  }
  TESSERA_RETURN_IF_ERROR(rendering.charge((format->text()->size() + 4) * 64));
  return Value(
      Text(rendering.local_time(format->text()->bytes()), format->text()->any_from_message()));
}

struct Function {
  std::string_view name;
  Result (*call)(const Arguments&, Rendering&);
};

constexpr Function kFunctions[] = {{"range", range},
                                   {"namespace", make_namespace},
                                   {"dict", make_dict},
                                   {"raise_exception", raise_exception},
                                   {"strftime_now", strftime_now}};

const Function* find_function(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFunctions), std::end(kFunctions),
                                   [&](const Function& f) { return f.name == name; });
  return found == std::end(kFunctions) ? nullptr : found;
}

}  // namespace

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [given, value] : named) {
    if (given == name) return &value;
  }
  return nullptr;
}

Result loop_state(const std::vector<Value>& items, size_t index) {
  const auto at = static_cast<int64_t>(index);
  const auto size = static_cast<int64_t>(items.size());
  Dict state;
  const auto put = [&state](const char* name, Value value) {
    state.items.emplace_back(Text(name), std::move(value));
  };
  put("index0", Value(at));
  put("index", Value(at + 1));
  put("first", Value(at == 0));
  put("last", Value(at + 1 == size));
  put("length", Value(size));
  put("revindex", Value(size - at));
  put("revindex0", Value(size - at - 1));
  if (at > 0) put("previtem", items[index - 1]);
  if (at + 1 < size) put("nextitem", items[index + 1]);
  return Value::dict(std::move(state));
}

bool known_function(std::string_view name) {
  return find_function(name) != nullptr;
}

absl::StatusOr<Value> call_function(std::string_view name, const Arguments& arguments,
                                    Rendering& rendering) {
  return find_function(name)->call(arguments, rendering);
}

}  // namespace tessera::jinja
