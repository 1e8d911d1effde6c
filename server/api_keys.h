#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// The keys that open the API, for both front ends. Any of them does; without one nothing is locked.
// Immutable; any thread may ask.
class ApiKeys {
 public:
  ApiKeys() = default;
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  // `list`: keys between commas, may be empty. `file`: one key on each line, empty lines and those
  // that begin with '#' aside; may be empty, which is no file. Blanks around a key do not count.
  // Errors: NotFound for a file that cannot be read, InvalidArgument for one without a key (it
  // would leave the server open) and for a key that is no visible ASCII.
  static absl::StatusOr<ApiKeys> load(std::string_view list, const std::filesystem::path& file);

  bool locked() const { return !keys_.empty(); }

  // Whether a request may pass with this Authorization header, or gRPC's metadata of that name:
  // "Bearer KEY", or, with `basic_too`, HTTP's "Basic ..." with a key as the password and any user
  // name. Takes a time that does not tell how much of a key was right.
  bool open(std::string_view authorization, bool basic_too = false) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace tessera
