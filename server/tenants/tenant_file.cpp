#include "server/tenants/tenant_file.h"

#include <fmt/format.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "server/base/configuration_file.h"
#include "server/base/yaml_document.h"

namespace tessera {
namespace {

constexpr std::size_t kMinKeyBytes = 16;
constexpr std::size_t kMaxNameBytes = 64;
constexpr std::string_view kDigestPrefix = "sha256:";

// A reader of one field: sets a member from its text.
struct Field {
  std::string_view name;
  std::function<absl::Status(const std::string&)> read;
};

class Parser {
 public:
  explicit Parser(std::string_view file) : file_(file) {}

  absl::StatusOr<std::vector<TenantEntry>> parse(const YAML::Node& root) {
    if (!root.IsMap() || root.size() != 1 || !root["tenants"] || !root["tenants"].IsSequence()) {
      return at(root, "must be a mapping with one key, 'tenants', and a list as its value");
    }
    std::vector<TenantEntry> tenants;
    for (const YAML::Node& node : root["tenants"]) {
      TESSERA_ASSIGN_OR_RETURN(tenants.emplace_back(), parse_tenant(node));
    }
    if (tenants.empty() || tenants.size() > kMaxTenants) {
      return at(root, fmt::format("tenants: has {} entries, must have 1 to {}", tenants.size(),
                                  kMaxTenants));
    }
    int64_t shares = 0;
    for (const TenantEntry& tenant : tenants) {
      shares += tenant.limits.share;
    }
    for (TenantEntry& tenant : tenants) {
      tenant.limits.pin_part *=
          static_cast<double>(tenant.limits.share) / static_cast<double>(shares);
    }
    return tenants;
  }

 private:
  absl::Status at(const YAML::Node& node, std::string_view message) const {
    return absl::InvalidArgumentError(
        fmt::format("{}:{}: {}", file_, node.Mark().line + 1, message));
  }

  // Reads the fields of a mapping. `list`: the name of the one field that is a list; it is left
  // out.
  absl::Status read_fields(const YAML::Node& node, const std::vector<Field>& fields,
                           std::string_view list) const {
    if (!node.IsMap()) {
      return at(node, "must be a mapping");
    }
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (!seen.insert(name).second) {
        return at(entry.first, fmt::format("{}: stands here twice", name));
      }
      if (name == list && !name.empty()) {
        continue;
      }
      const auto field = std::find_if(fields.begin(), fields.end(),
                                      [&](const Field& some) { return some.name == name; });
      if (field == fields.end()) {
        return at(entry.first, fmt::format("unknown key '{}'", name));
      }
      if (!entry.second.IsScalar()) {
        return at(entry.first, fmt::format("{}: needs one plain value", name));
      }
      if (const absl::Status status = field->read(entry.second.Scalar()); !status.ok()) {
        return at(entry.second, fmt::format("{}: {}", name, std::string(status.message())));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TenantEntry> parse_tenant(const YAML::Node& node) {
    TenantEntry tenant;
    TenantLimits& limits = tenant.limits;
    int64_t pin_tokens = -1;
    TESSERA_RETURN_IF_ERROR(
        read_fields(node,
                    {name_field(limits.name), text_field("salt", limits.salt),
                     number_field("share", 1, kMaxTenantShare, limits.share),
                     number_field("priority-min", -1000, 1000, limits.priority_min),
                     number_field("priority-max", -1000, 1000, limits.priority_max),
                     number_field("pin-tokens", 0, kMost, pin_tokens),
                     number_field("requests-per-minute", 0, kMost, limits.requests_per_minute),
                     number_field("tokens-per-minute", 0, kMost, limits.tokens_per_minute)},
                    "keys"));
    if (pin_tokens >= 0) {
      limits.pin_tokens = pin_tokens;
    }
    if (limits.name.empty()) {
      return at(node, "a tenant needs a name");
    }
    if (!names_.insert(limits.name).second) {
      return at(node, fmt::format("name: there are two tenants '{}'", limits.name));
    }
    if (limits.salt.empty()) {
      limits.salt = limits.name;
    }
    if (!salts_.insert(limits.salt).second) {
      return at(node, fmt::format("salt: tenant '{}' has the salt of another one", limits.name));
    }
    if (limits.priority_min > limits.priority_max) {
      return at(node, fmt::format("priority-min is {}, above priority-max, which is {}",
                                  limits.priority_min, limits.priority_max));
    }
    TESSERA_RETURN_IF_ERROR(parse_keys(node, tenant));
    return tenant;
  }

  absl::Status parse_keys(const YAML::Node& node, TenantEntry& tenant) {
    const YAML::Node keys = node["keys"];
    if (!keys || !keys.IsSequence() || keys.size() == 0) {
      return at(node, fmt::format("keys: tenant '{}' needs a list of at least one key",
                                  tenant.limits.name));
    }
    for (const YAML::Node& entry : keys) {
      TenantKey key;
      TESSERA_RETURN_IF_ERROR(read_fields(
          entry, {name_field(key.name), key_field(key.digest), flag_field("admin", key.admin)},
          {}));
      if (key.name.empty() || key.digest.empty()) {
        return at(entry, "a key needs a name and a key");
      }
      if (!key_names_.insert(key.name).second) {
        return at(entry, fmt::format("name: there are two keys '{}'", key.name));
      }
      if (!digests_.insert(key.digest).second) {
        return at(entry, fmt::format("key: '{}' has the key of another entry", key.name));
      }
      tenant.keys.push_back(std::move(key));
    }
    return absl::OkStatus();
  }

  // ---- fields

  static constexpr int64_t kMost = 1'000'000'000'000;

  static Field text_field(std::string_view name, std::string& out) {
    return {name, [&out](const std::string& text) {
              if (text.size() > 1024) {
                return absl::InvalidArgumentError("has more than 1024 bytes");
              }
              out = text;
              return absl::OkStatus();
            }};
  }

  // Names stand in logs and metrics.
  static Field name_field(std::string& out) {
    return {"name", [&out](const std::string& text) {
              const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
                return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
              });
              if (!plain || text.empty() || text.size() > kMaxNameBytes) {
                return absl::InvalidArgumentError(fmt::format(
                    "must have 1 to {} letters, digits, '-', '_' or '.'", kMaxNameBytes));
              }
              out = text;
              return absl::OkStatus();
            }};
  }

  static Field flag_field(std::string_view name, bool& out) {
    return {name, [&out](const std::string& text) {
              if (text != "true" && text != "false") {
                return absl::InvalidArgumentError(fmt::format("'{}' is not true or false", text));
              }
              out = text == "true";
              return absl::OkStatus();
            }};
  }

  template <class Number>
  static Field number_field(std::string_view name, int64_t min, int64_t max, Number& out) {
    return {name, [&out, min, max](const std::string& text) {
              int64_t value = 0;
              if (!absl::SimpleAtoi(text, &value)) {
                return absl::InvalidArgumentError(fmt::format("'{}' is not a whole number", text));
              }
              if (value < min || value > max) {
                return absl::InvalidArgumentError(
                    fmt::format("{} is not within {} to {}", value, min, max));
              }
              out = static_cast<Number>(value);
              return absl::OkStatus();
            }};
  }

  static Field key_field(std::string& digest) {
    return {"key", [&digest](const std::string& text) {
              if (text.starts_with(kDigestPrefix)) {
                const std::string hex = text.substr(kDigestPrefix.size());
                const bool valid =
                    hex.size() == 64 && std::all_of(hex.begin(), hex.end(), [](unsigned char c) {
                      return std::isxdigit(c) != 0;
                    });
                if (!valid) {
                  return absl::InvalidArgumentError("sha256: must have 64 hexadecimal digits");
                }
                digest = absl::HexStringToBytes(hex);
                return absl::OkStatus();
              }
              if (text.size() < kMinKeyBytes || !std::all_of(text.begin(), text.end(), [](char c) {
                    return c > ' ' && c < '\x7f';
                  })) {
                return absl::InvalidArgumentError(fmt::format(
                    "must have at least {} characters, all of them visible ASCII", kMinKeyBytes));
              }
              digest = digest_of(text);
              return absl::OkStatus();
            }};
  }

  const std::string file_;
  std::set<std::string> names_;
  std::set<std::string> salts_;
  std::set<std::string> key_names_;
  std::set<std::string> digests_;
};

}  // namespace

std::string digest_of(std::string_view key) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

absl::StatusOr<std::vector<TenantEntry>> parse_tenants(std::string_view yaml,
                                                       std::string_view file) {
  try {
    TESSERA_ASSIGN_OR_RETURN(const YAML::Node root, load_yaml_document(yaml, file));
    return Parser(file).parse(root);
  } catch (const YAML::Exception& error) {
    // The message may quote a key, the position does not.
    return absl::InvalidArgumentError(
        fmt::format("{}:{}: is not valid YAML", file, error.mark.line + 1));
  }
}

absl::StatusOr<std::vector<TenantEntry>> read_tenants(const std::filesystem::path& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
      (status.st_mode & S_IRWXO) != 0) {
    return absl::FailedPreconditionError(
        fmt::format("tenants {}: every user of the machine may use this file (mode {:04o}); it has "
                    "keys: chmod 640 or 600",
                    path.string(), status.st_mode & 07777));
  }
  const absl::StatusOr<std::string> text = read_configuration_file(path);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        fmt::format("tenants {}", std::string(text.status().message())));
  }
  return parse_tenants(*text, path.string());
}

}  // namespace tessera
