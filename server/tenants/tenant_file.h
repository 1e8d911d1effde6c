#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tenants/caller.h"

namespace tessera {

// A key of the tenant file.
struct TenantKey {
  std::string name;
  std::string digest;  // SHA-256, 32 bytes
  bool admin = false;
};

struct TenantEntry {
  TenantLimits limits;
  std::vector<TenantKey> keys;
};

inline constexpr std::size_t kMaxTenants = 1024;

// Parses a tenant file (docs/howto/tenants.md). `file`: its name in errors.
// Errors: InvalidArgument "FILE:LINE: KEY: ...": unknown keys, values out of range, names or keys
// that stand there twice, no tenant, a tenant without a key. Errors never quote a key.
absl::StatusOr<std::vector<TenantEntry>> parse_tenants(std::string_view yaml,
                                                       std::string_view file);

// The same from a file.
// Errors: NotFound if it cannot be read. FailedPrecondition if others than its owner and its group
// may read or write it, because it has keys.
absl::StatusOr<std::vector<TenantEntry>> read_tenants(const std::filesystem::path& path);

// Returns: SHA-256 of a key, 32 bytes.
std::string digest_of(std::string_view key);

}  // namespace tessera
