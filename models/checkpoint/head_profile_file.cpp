#include "models/checkpoint/head_profile_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/json_fields.h"
#include "files/mapped_file.h"

namespace tessera {
namespace {

constexpr const char* kFileName = "head_profile.json";
constexpr int32_t kVersion = 1;
constexpr double kMaxLoss = 1e6;  // nats

absl::Status check_count(JsonFields& fields, const char* key, int32_t expected) {
  const int32_t found = fields.integer(key, 1, std::numeric_limits<int32_t>::max());
  if (fields.status().ok() && found != expected) {
    fields.refuse(key, absl::StrCat("is ", found, ", the model has ", expected));
  }
  return fields.status();
}

}  // namespace

std::filesystem::path head_profile_path(const std::filesystem::path& model) {
  std::error_code error;
  if (std::filesystem::is_directory(model, error)) {
    return model / kFileName;
  }
  return std::filesystem::path(model.string() + "." + kFileName);
}

absl::StatusOr<std::vector<HeadProfile>> read_head_profiles(const std::filesystem::path& path,
                                                            int32_t layers, int32_t kv_heads) {
  absl::StatusOr<std::string> text = read_small_file(path);
  if (absl::IsNotFound(text.status())) {
    return std::vector<HeadProfile>();
  }
  TESSERA_RETURN_IF_ERROR(text.status());
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json parsed, parse_strict_json(*text, path.string()));
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": is not a JSON object"));
  }
  JsonFields fields(parsed, path.string());
  fields.integer("version", kVersion, kVersion);
  TESSERA_RETURN_IF_ERROR(check_count(fields, "layers", layers));
  TESSERA_RETURN_IF_ERROR(check_count(fields, "kv_heads", kv_heads));
  const std::vector<float> losses = fields.numbers("losses", 0, kMaxLoss);
  if (fields.status().ok() && std::ssize(losses) != int64_t{layers} * kv_heads) {
    fields.refuse("losses", absl::StrCat("has ", losses.size(), " numbers, not one for each of ",
                                         layers, " x ", kv_heads, " KV heads"));
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  return head_profiles(losses);
}

std::vector<HeadProfile> head_profiles(std::span<const float> losses) {
  std::vector<size_t> order(losses.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return losses[a] > losses[b]; });
  const auto rows = static_cast<double>(losses.size());
  std::vector<HeadProfile> profiles(losses.size());
  for (size_t place = 0; place < order.size(); ++place) {
    profiles[order[place]] = {.place = static_cast<float>(static_cast<double>(place) / rows)};
  }
  return profiles;
}

std::string print_head_losses(const HeadLosses& losses) {
  constexpr double kDigits = 1e7;  // a rank needs no more
  std::vector<double> rounded;
  for (const float loss : losses.losses) {
    rounded.push_back(std::round(double{loss} * kDigits) / kDigits);
  }
  const nlohmann::ordered_json json = {{"version", kVersion},
                                       {"measured", losses.measured},
                                       {"layers", losses.layers},
                                       {"kv_heads", losses.kv_heads},
                                       {"losses", rounded}};
  return json.dump(1) + "\n";
}

}  // namespace tessera
