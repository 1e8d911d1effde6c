#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// API keys of both front ends. Any one of them authorizes a request. Without keys every request is
// authorized. Immutable and thread-safe.
class ApiKeys {
 public:
  ApiKeys() = default;
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  // `list`: comma-separated keys, may be empty. `file`: one key per line; empty lines and lines
  // that begin with '#' are skipped. An empty path means no file. Blanks around a key are ignored.
  // Errors: NotFound if the file cannot be read. InvalidArgument if a given list or file has no key
  // (it would leave the server open), or if a key is not visible ASCII.
  static absl::StatusOr<ApiKeys> load(std::string_view list, const std::filesystem::path& file);

  bool locked() const { return !keys_.empty(); }

  // `authorization`: the Authorization header, or gRPC's metadata of that name: "Bearer KEY", or,
  // with `basic_too`, HTTP's "Basic ..." with a key as the password and any user name.
  // Returns: the name of its key, such as "key-2"; empty if there are no keys; nothing if it has no
  // valid key. The time that this takes does not reveal how much of a key was right.
  std::optional<std::string> name_of(std::string_view authorization, bool basic_too = false) const;

  bool open(std::string_view authorization, bool basic_too = false) const {
    return name_of(authorization, basic_too).has_value();
  }

 private:
  std::vector<std::string> keys_;
};

}  // namespace tessera
