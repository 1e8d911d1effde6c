#include "server/dialect/kv_cache.h"

#include <fmt/format.h>

#include <string>

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// Returns: the text of a policy field's JSON value, which is a number, a string or a boolean.
std::string plain_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Inverse of plain_text().
Json plain_json(const std::string& text) {
  const Json number = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return number.is_number() || number.is_boolean() ? number : Json(text);
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
      out.fields.emplace_back(name, plain_text(value));
    }
  }
}

Json kv_cache_json(const KvReport& report) {
  Json json = {{"policy", report.preset().name}};
  for (const auto& [name, value] : policy_fields(report.preset().policy)) {
    json["settings"][name] = plain_json(value);
  }
  json["bytes"] = report.bytes();
  json["f16_bytes"] = report.f16_bytes();
  json["tokens"] = {{"high", report.high()}, {"low", report.low()}, {"dropped", report.dropped()}};
  json["budget_share"] = report.budget_share();
  return json;
}

}  // namespace tessera
