#include "server/api_keys.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "models/status_macros.h"

namespace tessera {
namespace {

bool same_secret(std::string_view given, std::string_view key) {
  volatile unsigned difference = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference = difference | static_cast<unsigned>(given[i] ^ key[i % key.size()]);
  }
  return difference == 0;
}

// `where` names the source in errors, which never quote a key.
absl::Status add(std::string key, std::string_view where, std::vector<std::string>& keys) {
  absl::StripAsciiWhitespace(&key);
  if (key.empty()) {
    return absl::OkStatus();
  }
  if (!std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < '\x7f'; })) {
    return absl::InvalidArgumentError(
        fmt::format("{}: a key has a character that is not visible ASCII", where));
  }
  keys.push_back(std::move(key));
  return absl::OkStatus();
}

absl::Status add_file(const std::filesystem::path& path, std::vector<std::string>& keys) {
  const std::string where = fmt::format("api-key-file {}", path.string());
  struct stat state {};
  if (stat(path.c_str(), &state) == 0 && (state.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    spdlog::warn("{}: other users can read it (chmod 600)", where);
  }
  std::ifstream file(path);
  const std::size_t before = keys.size();
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with('#')) {
      TESSERA_RETURN_IF_ERROR(add(std::move(line), where, keys));
    }
  }
  if (!file.eof()) {
    return absl::NotFoundError(fmt::format("{}: cannot be read", where));
  }
  if (keys.size() == before) {
    return absl::InvalidArgumentError(fmt::format("{}: has no key", where));
  }
  return absl::OkStatus();
}

// Returns: the part of a header after `scheme`, or nothing if the header has another scheme.
// Schemes are case-insensitive (RFC 9110).
std::optional<std::string_view> credentials(std::string_view header, std::string_view scheme) {
  const auto same = [](char a, char b) {
    return absl::ascii_tolower(static_cast<unsigned char>(a)) ==
           absl::ascii_tolower(static_cast<unsigned char>(b));
  };
  if (header.size() <= scheme.size() || header[scheme.size()] != ' ' ||
      !std::equal(scheme.begin(), scheme.end(), header.begin(), same)) {
    return std::nullopt;
  }
  header.remove_prefix(scheme.size());
  header.remove_prefix(std::min(header.find_first_not_of(' '), header.size()));
  return header;
}

// Returns: the secret in a header; empty if there is none.
std::string secret_of(std::string_view header, bool basic_too) {
  if (const auto bearer = credentials(header, "Bearer")) {
    return std::string(*bearer);
  }
  std::string pair;
  const auto basic = credentials(header, "Basic");
  if (!basic_too || !basic || !absl::Base64Unescape({basic->data(), basic->size()}, &pair)) {
    return {};
  }
  const std::size_t colon = pair.find(':');
  return colon == std::string::npos ? std::string() : pair.substr(colon + 1);
}

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::load(std::string_view list, const std::filesystem::path& file) {
  std::vector<std::string> keys;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    TESSERA_RETURN_IF_ERROR(add(std::string(list.substr(begin, end - begin)), "api-key", keys));
    begin = end + 1;
  }
  if (!list.empty() && keys.empty()) {
    return absl::InvalidArgumentError("api-key: has no key");
  }
  if (!file.empty()) {
    TESSERA_RETURN_IF_ERROR(add_file(file, keys));
  }
  return ApiKeys(std::move(keys));
}

std::optional<std::string> ApiKeys::name_of(std::string_view authorization, bool basic_too) const {
  if (keys_.empty()) {
    return std::string();
  }
  const std::string given = secret_of(authorization, basic_too);
  std::size_t number = 0;  // 0: none
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    number = same_secret(given, keys_[i]) ? i + 1 : number;
  }
  return number > 0 ? std::optional(fmt::format("key-{}", number)) : std::nullopt;
}

}  // namespace tessera
