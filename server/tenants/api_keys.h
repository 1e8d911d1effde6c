#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tenants/caller.h"

namespace tessera {

// Places of API keys.
struct KeySources {
  std::string list;               // comma-separated keys, may be empty
  std::filesystem::path file;     // one key on each line; empty: none
  std::filesystem::path tenants;  // tenant file (tenant_file.h); empty: none
};

// API keys of both front ends, and their callers. Any one key authorizes a request. Without keys
// every request is authorized. Copies share one set of keys, which reload() replaces. Thread-safe.
class ApiKeys {
 public:
  ApiKeys();  // no keys
  explicit ApiKeys(const std::vector<std::string>& keys, const TenantLimits& everyone = {});

  // Reads keys from a list, and from a file: empty lines and lines that begin with '#' are skipped,
  // and blanks around a key are ignored. Their callers are one tenant with the limits of
  // `everyone`, and may use admin routes. Or reads the tenant file, and then these have no key.
  // Errors: NotFound if a file cannot be read. InvalidArgument if a given list or file has no key
  // (it would leave the server open), or if a key is not visible ASCII. As read_tenants().
  static absl::StatusOr<ApiKeys> load(const KeySources& sources, const TenantLimits& everyone = {});
  static absl::StatusOr<ApiKeys> load(std::string_view list, const std::filesystem::path& file) {
    return load({.list = std::string(list), .file = file, .tenants = {}});
  }

  // Reads the same sources again. Requests that were authorized go on. A tenant keeps its rates,
  // and its place among tenants, if it keeps its name.
  // Errors: as load(), and the keys stay as they were.
  absl::Status reload(const KeySources& sources, const TenantLimits& everyone) const;

  bool locked() const;

  // `authorization`: the Authorization header, or gRPC's metadata of that name: "Bearer KEY", or,
  // with `basic_too`, HTTP's "Basic ..." with a key as the password and any user name.
  // Returns: the caller; null if there are keys and the header has none of them. Keys are compared
  // by their SHA-256, so the time does not reveal how much of a key was right.
  std::shared_ptr<const Caller> find(std::string_view authorization, bool basic_too = false) const;
  bool open(std::string_view authorization, bool basic_too = false) const {
    return find(authorization, basic_too) != nullptr;
  }

 private:
  struct Ring;
  struct Shared;

  std::shared_ptr<Shared> shared_;
};

}  // namespace tessera
