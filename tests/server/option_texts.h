#pragma once

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/kv/kv_policy_fields.h"
#include "engine/request_options.h"

namespace tessera {

// Values of a request's options as text, by name.

inline std::string text(bool value) {
  return value ? "true" : "false";
}
inline std::string text(const std::string& value) {
  return value;
}
inline std::string text(const RequestOptions::Cache& cache) {
  return fmt::format("{} {} {} {} {} {}", cache.use, cache.pin, cache.ttl.count(), cache.demote,
                     cache.release, cache.prefetch);
}
inline std::string text(KvFormat format) {
  return std::string(name_of(format));
}
inline std::string text(const SamplingParams::Bias& bias) {
  return fmt::format("{}:{}", bias.token, bias.value);
}
template <class Number>
requires std::is_arithmetic_v<Number> std::string text(Number value) {
  return fmt::format("{}", value);
}
template <class T>
inline std::string text(const std::optional<T>& value) {
  return value.has_value() ? text(*value) : "none";
}
template <class T>
inline std::string text(const std::vector<T>& values) {
  std::string all;
  for (const T& value : values) {
    all += text(value) + " ";
  }
  return all;
}

using Texts = std::map<std::string, std::string>;

inline Texts texts_of(const RequestOptions& options) {
  Texts texts;
  visit_options([&](const Option& option,
                    const auto& member) { texts[std::string(option.name)] = text(member); },
                options);
  return texts;
}

}  // namespace tessera
