#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The bytes of a file. Errors: NotFound, or InvalidArgument beyond 256 MiB.
absl::StatusOr<std::string> read_text_file(const std::filesystem::path& path);

// Errors as above, and InvalidArgument for what is no JSON object. No exception leaves it.
absl::StatusOr<nlohmann::json> read_json_object(const std::filesystem::path& path);

// The member of an object, null where it has none or is no object.
const nlohmann::json& json_member(const nlohmann::json& object, std::string_view name);

// Typed members: nothing where the member is absent or null, an error that names it where it has
// another type.
absl::StatusOr<std::optional<bool>> json_bool(const nlohmann::json& object, std::string_view name);
absl::StatusOr<std::optional<std::string>> json_string(const nlohmann::json& object,
                                                       std::string_view name);

// A token id: a number in [0, 2^22). Errors name `what`.
absl::StatusOr<int32_t> json_token_id(const nlohmann::json& value, const std::string& what);

}  // namespace tessera
