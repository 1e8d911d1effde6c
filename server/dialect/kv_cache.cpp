#include "server/dialect/kv_cache.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "server/request/model_sampling.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// Returns: a policy field's JSON value, which is a number, a text or a boolean.
KvFieldValue value_of(const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return value.get<float>();
  // A number beyond int64_t is no value of any field, and is named as it stands there.
  const bool fits = !value.is_number_unsigned() || std::in_range<int64_t>(value.get<uint64_t>());
  return fits ? KvFieldValue(value.get<int64_t>()) : KvFieldValue(value.dump());
}

Json json_of(const KvFieldValue& value) {
  if (const float* number = std::get_if<float>(&value)) return shortest_number(*number);
  return std::visit([](const auto& other) { return Json(other); }, value);
}

}  // namespace

void read_kv_cache(BodyFields& fields, KvOverrides& out) {
  const nlohmann::json* given = fields.find("kv_cache");
  if (given == nullptr) {
    return;
  }
  if (given->is_string()) {
    out.preset = given->get<std::string>();
    return;
  }
  if (!given->is_object()) {
    fields.refuse("kv_cache",
                  fmt::format("must be a preset's name or an object, not {}", excerpt(*given)));
    return;
  }
  for (const auto& [name, value] : given->items()) {
    const bool preset = name == "preset";
    if (preset ? !value.is_string() : !value.is_primitive() || value.is_null()) {
      fields.refuse("kv_cache." + name, fmt::format("cannot be {}", excerpt(value)));
      return;
    }
    if (preset) {
      out.preset = value.get<std::string>();
    } else {
      out.fields.emplace_back(name, value_of(value));
    }
  }
}

Json kv_cache_json(const KvReport& report) {
  Json json = {{"policy", report.preset().name}};
  for (const auto& [name, value] : policy_fields(report.preset().policy)) {
    json["settings"][name] = json_of(value);
  }
  json["bytes"] = report.bytes();
  json["f16_bytes"] = report.f16_bytes();
  json["tokens"] = {{"high", report.high()}, {"low", report.low()}, {"dropped", report.dropped()}};
  json["budget_share"] = report.budget_share();
  return json;
}

}  // namespace tessera
