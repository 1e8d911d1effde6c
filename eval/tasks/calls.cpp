#include "eval/tasks/calls.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

using nlohmann::json;

constexpr double kLargestInteger = 9007199254740992;  // up to which a double has every integer

// Returns: the position behind the object that begins at `begin`; npos if it does not end.
size_t end_of_object(std::string_view text, size_t begin) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (depth == 0) return i + 1;
  }
  return std::string_view::npos;
}

// Writes 3.0 as 3.
void unify_numbers(json& value) {
  if (value.is_structured()) {
    std::for_each(value.begin(), value.end(), unify_numbers);
  } else if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::trunc(number) == number && std::abs(number) < kLargestInteger) {
      value = static_cast<int64_t>(number);
    }
  }
}

// Returns: the arguments of an object that is a call, else null. Some models write them as a text.
json arguments_of(const json& object) {
  if (!object.is_object() || !object.contains("name") || !object["name"].is_string()) return {};
  for (const char* key : {"arguments", "parameters"}) {
    if (!object.contains(key)) continue;
    json arguments = object[key];
    if (arguments.is_string()) {
      arguments = json::parse(arguments.get<std::string>(), nullptr, /*allow_exceptions=*/false);
    }
    if (arguments.is_object()) return arguments;
  }
  return {};
}

}  // namespace

std::vector<TextCall> calls_in(std::string_view text) {
  std::vector<TextCall> calls;
  for (size_t at = text.find('{'); at != text.npos; at = text.find('{', at)) {
    const size_t end = end_of_object(text, at);
    if (end == text.npos) {
      ++at;
      continue;
    }
    const json object = json::parse(text.substr(at, end - at), nullptr, /*allow_exceptions=*/false);
    json arguments = arguments_of(object);
    if (arguments.is_null()) {
      ++at;
      continue;
    }
    unify_numbers(arguments);
    calls.push_back({object["name"].get<std::string>(), arguments.dump()});
    at = end;
  }
  return calls;
}

bool have_same_calls(std::string_view text, std::string_view other) {
  const std::vector<TextCall> calls = calls_in(text);
  const std::vector<TextCall> others = calls_in(other);
  return std::is_permutation(calls.begin(), calls.end(), others.begin(), others.end());
}

}  // namespace tessera
