#pragma once

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/base/quantity.h"
#include "server/settings/settings.h"

// One factory for each type of field. `at` is a lambda from Settings& to the member.
namespace tessera {

inline constexpr int32_t kMaxInteger = std::numeric_limits<int32_t>::max();

template <class At>
SettingsField text_field(std::string_view name, std::string_view value_name, std::string help,
                         At at) {
  return {name, std::string(value_name), help,
          [at](Settings& settings, std::string_view text) {
            at(settings) = std::string(text);
            return absl::OkStatus();
          },
          [at](const Settings& settings) { return std::string(at(settings)); }};
}

struct IntegerRange {
  int32_t min;
  int32_t max;
};

template <class At>
SettingsField integer_field(std::string_view name, std::string_view value_name, IntegerRange range,
                            std::string help, At at) {
  return {name, std::string(value_name), help,
          [at, range](Settings& settings, std::string_view text) {
            int32_t value = 0;
            if (!absl::SimpleAtoi(std::string(text), &value)) {
              return absl::InvalidArgumentError(fmt::format("'{}' is not a whole number", text));
            }
            if (value < range.min || value > range.max) {
              return absl::InvalidArgumentError(
                  range.max == kMaxInteger
                      ? fmt::format("{} is less than {}", value, range.min)
                      : fmt::format("{} is not within {} to {}", value, range.min, range.max));
            }
            at(settings) = static_cast<std::decay_t<decltype(at(settings))>>(value);
            return absl::OkStatus();
          },
          [at](const Settings& settings) { return fmt::format("{}", at(settings)); }};
}

// Checks a quantity: at least `min`, at most the maximum of the member's type.
template <class Member>
absl::StatusOr<Member> within(int64_t value, int64_t min, std::string_view text) {
  if (value < min || std::cmp_greater(value, std::numeric_limits<Member>::max())) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is {}", text, value < min ? "too small" : "too large"));
  }
  return static_cast<Member>(value);
}

template <class At>
SettingsField bytes_field(std::string_view name, int64_t min, std::string help, At at) {
  return {name, "BYTES", help,
          [at, min](Settings& settings, std::string_view text) {
            using Member = std::decay_t<decltype(at(settings))>;
            TESSERA_ASSIGN_OR_RETURN(const int64_t count, parse_quantity(text, kByteUnits, 1));
            TESSERA_ASSIGN_OR_RETURN(at(settings), within<Member>(count, min, text));
            return absl::OkStatus();
          },
          [at](const Settings& settings) {
            return print_quantity(static_cast<int64_t>(at(settings)), kByteUnits);
          }};
}

template <class At>
SettingsField time_field(std::string_view name, int64_t min, std::string help, At at) {
  return {
      name, "TIME", help,
      [at, min](Settings& settings, std::string_view text) {
        TESSERA_ASSIGN_OR_RETURN(const int64_t count, parse_quantity(text, kTimeUnits, 1'000));
        TESSERA_ASSIGN_OR_RETURN(const int32_t milliseconds, within<int32_t>(count, min, text));
        at(settings) = std::chrono::milliseconds(milliseconds);
        return absl::OkStatus();
      },
      [at](const Settings& settings) { return print_quantity(at(settings).count(), kTimeUnits); }};
}

template <class Value>
struct NamedValue {
  std::string_view name;
  Value value;
};

template <class Value, class At>
SettingsField choice_field(std::string_view name, std::vector<NamedValue<Value>> choices,
                           std::string help, At at) {
  std::vector<std::string> names;
  for (const NamedValue<Value>& choice : choices) {
    names.emplace_back(choice.name);
  }
  return {name, absl::StrJoin(names, "|"), help,
          [at, choices, names](Settings& settings, std::string_view text) {
            for (const NamedValue<Value>& choice : choices) {
              if (choice.name == text) {
                at(settings) = choice.value;
                return absl::OkStatus();
              }
            }
            return absl::InvalidArgumentError(
                fmt::format("'{}' is none of {}", text, absl::StrJoin(names, ", ")));
          },
          [at, choices](const Settings& settings) {
            for (const NamedValue<Value>& choice : choices) {
              if (choice.value == at(settings)) {
                return std::string(choice.name);
              }
            }
            return std::string();
          }};
}

// A choice that is kept as its name.
template <class At>
SettingsField name_field(std::string_view name, const std::vector<std::string>& names,
                         std::string help, At at) {
  SettingsField field = text_field(name, "", std::move(help), at);
  field.value_name = absl::StrJoin(names, "|");
  field.parse = [at, names](Settings& settings, std::string_view text) {
    if (std::find(names.begin(), names.end(), text) == names.end()) {
      return absl::InvalidArgumentError(
          fmt::format("'{}' is none of {}", text, absl::StrJoin(names, ", ")));
    }
    at(settings) = std::string(text);
    return absl::OkStatus();
  };
  return field;
}

}  // namespace tessera
