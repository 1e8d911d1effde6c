#include "server/tenants/api_keys.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/status_macros.h"
#include "server/base/configuration_file.h"
#include "server/tenants/tenant_file.h"

namespace tessera {
namespace {

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
  // A group may: Kubernetes gives a mounted secret to the group of the pod alone.
  if (stat(path.c_str(), &state) == 0 && (state.st_mode & S_IROTH) != 0) {
    spdlog::warn("{}: other users can read it (chmod 640 or 600)", where);
  }
  absl::StatusOr<std::string> text = read_configuration_file(path);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        fmt::format("api-key-file {}", std::string(text.status().message())));
  }
  std::istringstream lines(*std::move(text));
  const std::size_t before = keys.size();
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with('#')) {
      TESSERA_RETURN_IF_ERROR(add(std::move(line), where, keys));
    }
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

absl::StatusOr<std::vector<std::string>> read_keys(const KeySources& sources) {
  const std::string_view list = sources.list;
  std::vector<std::string> keys;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    TESSERA_RETURN_IF_ERROR(add(std::string(list.substr(begin, end - begin)), "api-key", keys));
    begin = end + 1;
  }
  if (!list.empty() && keys.empty()) {
    return absl::InvalidArgumentError("api-key: has no key");
  }
  if (!sources.file.empty()) {
    TESSERA_RETURN_IF_ERROR(add_file(sources.file, keys));
  }
  return keys;
}

}  // namespace

// Callers by the digest of their key.
struct ApiKeys::Ring {
  std::unordered_map<std::string, std::shared_ptr<const Caller>> callers;
};

struct ApiKeys::Shared {
  std::atomic<std::shared_ptr<const Ring>> ring = std::make_shared<const Ring>();
  std::shared_ptr<const Caller> anyone = std::make_shared<const Caller>();  // without keys

  // Runtime state of tenants, by name. It outlasts reloads.
  struct Tenant {
    int32_t id = 0;
    std::shared_ptr<RateMeter> meter = std::make_shared<RateMeter>();
  };
  std::mutex mutex;
  std::map<std::string, Tenant> tenants;

  std::shared_ptr<const Ring> make_ring(const std::vector<std::string>& keys,
                                        const TenantLimits& everyone);
  std::shared_ptr<const Ring> make_ring(const std::vector<TenantEntry>& entries);
};

std::shared_ptr<const ApiKeys::Ring> ApiKeys::Shared::make_ring(
    const std::vector<std::string>& keys, const TenantLimits& everyone) {
  auto made = std::make_shared<Ring>();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    auto caller = std::make_shared<Caller>(*anyone);
    caller->key = fmt::format("key-{}", i + 1);
    caller->tenant = everyone;
    made->callers.emplace(digest_of(keys[i]), std::move(caller));
  }
  return made;
}

std::shared_ptr<const ApiKeys::Ring> ApiKeys::Shared::make_ring(
    const std::vector<TenantEntry>& entries) {
  auto made = std::make_shared<Ring>();
  for (const TenantEntry& entry : entries) {
    const auto next = static_cast<int32_t>(tenants.size()) + 1;
    Tenant& tenant = tenants[entry.limits.name];
    tenant.id = tenant.id == 0 ? next : tenant.id;
    for (const TenantKey& key : entry.keys) {
      made->callers.emplace(key.digest,
                            std::make_shared<const Caller>(Caller{.key = key.name,
                                                                  .tenant = entry.limits,
                                                                  .tenant_id = tenant.id,
                                                                  .admin = key.admin,
                                                                  .meter = tenant.meter}));
    }
  }
  return made;
}

ApiKeys::ApiKeys() : shared_(std::make_shared<Shared>()) {}

ApiKeys::ApiKeys(const std::vector<std::string>& keys, const TenantLimits& everyone) : ApiKeys() {
  auto anyone = std::make_shared<Caller>();
  anyone->tenant = everyone;
  shared_->anyone = std::move(anyone);
  shared_->ring = shared_->make_ring(keys, everyone);
}

absl::StatusOr<ApiKeys> ApiKeys::load(const KeySources& sources, const TenantLimits& everyone) {
  ApiKeys keys({}, everyone);
  TESSERA_RETURN_IF_ERROR(keys.reload(sources, everyone));
  return keys;
}

absl::Status ApiKeys::reload(const KeySources& sources, const TenantLimits& everyone) const {
  const std::lock_guard lock(shared_->mutex);
  if (!sources.tenants.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TenantEntry> entries, read_tenants(sources.tenants));
    shared_->ring = shared_->make_ring(entries);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> keys, read_keys(sources));
  shared_->ring = shared_->make_ring(keys, everyone);
  return absl::OkStatus();
}

bool ApiKeys::locked() const {
  return !shared_->ring.load()->callers.empty();
}

std::shared_ptr<const Caller> ApiKeys::find(std::string_view authorization, bool basic_too) const {
  const std::shared_ptr<const Ring> ring = shared_->ring.load();
  if (ring->callers.empty()) {
    return shared_->anyone;
  }
  const auto found = ring->callers.find(digest_of(secret_of(authorization, basic_too)));
  return found == ring->callers.end() ? nullptr : found->second;
}

}  // namespace tessera
