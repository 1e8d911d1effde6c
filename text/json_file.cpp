#include "text/json_file.h"

#include <fstream>
#include <system_error>
#include <utility>

#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20U;
constexpr int64_t kMaxTokens = int64_t{1} << 22U;

}  // namespace

absl::StatusOr<std::string> read_text_file(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError("cannot read " + path.string() + ": " + error.message());
  if (size > kMaxFileBytes) {
    return absl::InvalidArgumentError(path.string() + " has " + std::to_string(size) +
                                      " bytes; at most " + std::to_string(kMaxFileBytes) +
                                      " are supported");
  }
  std::ifstream stream(path, std::ios::binary);
  std::string bytes(static_cast<size_t>(size), '\0');
  if (!stream.read(bytes.data(), static_cast<std::streamsize>(size))) {
    return absl::NotFoundError("cannot read " + path.string());
  }
  return bytes;
}

absl::StatusOr<nlohmann::json> read_json_object(const std::filesystem::path& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes, read_text_file(path));
  nlohmann::json parsed = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(path.string() + " is not a JSON object");
  }
  return parsed;
}

const nlohmann::json& json_member(const nlohmann::json& object, std::string_view name) {
  static const nlohmann::json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(std::string(name));
  return found == object.end() ? kNull : *found;
}

absl::StatusOr<std::optional<bool>> json_bool(const nlohmann::json& object, std::string_view name) {
  const nlohmann::json& value = json_member(object, name);
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean()) {
    return absl::InvalidArgumentError("\"" + std::string(name) + "\" is neither true nor false");
  }
  return value.get<bool>();
}

absl::StatusOr<std::optional<std::string>> json_string(const nlohmann::json& object,
                                                       std::string_view name) {
  const nlohmann::json& value = json_member(object, name);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string()) {
    return absl::InvalidArgumentError("\"" + std::string(name) + "\" is not a string");
  }
  return value.get<std::string>();
}

absl::StatusOr<int32_t> json_token_id(const nlohmann::json& value, const std::string& what) {
  if (!value.is_number_integer()) {
    return absl::InvalidArgumentError("the id of " + what + " is not a whole number");
  }
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() < static_cast<uint64_t>(kMaxTokens)
                        : value.get<int64_t>() >= 0 && value.get<int64_t>() < kMaxTokens;
  if (!fits) {
    return absl::InvalidArgumentError("the id of " + what + " is not between 0 and " +
                                      std::to_string(kMaxTokens - 1));
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

}  // namespace tessera
