#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Returns: the bytes of a file.
// Errors: NotFound; InvalidArgument above 256 MiB.
absl::StatusOr<std::string> read_text_file(const std::filesystem::path& path);

// Errors: as read_text_file; InvalidArgument if the file is not a JSON object. Throws nothing.
absl::StatusOr<nlohmann::json> read_json_object(const std::filesystem::path& path);

// Returns: the member of an object; JSON null if it is missing or `object` is not an object.
const nlohmann::json& json_member(const nlohmann::json& object, std::string_view name);

// Typed members.
// Returns: nullopt if the member is absent or null.
// Errors: InvalidArgument, which names the member, if it has another type.
absl::StatusOr<std::optional<bool>> json_bool(const nlohmann::json& object, std::string_view name);
absl::StatusOr<std::optional<std::string>> json_string(const nlohmann::json& object,
                                                       std::string_view name);

// Parses a token id, an integer in [0, 2^22).
// Errors: InvalidArgument, which names `what`.
absl::StatusOr<int32_t> json_token_id(const nlohmann::json& value, const std::string& what);

}  // namespace tessera
