#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "eval/measurement/http_address.h"

namespace tessera {

// One connection to a server, opened on first use and kept open. Blocking and not thread-safe.
class HttpClient {
 public:
  explicit HttpClient(HttpAddress address);
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;

  // Returns: the body of a 200 response.
  // Errors: Unavailable (no connection, or it broke). InvalidArgument for any other response, with
  // its status and the beginning of its body.
  absl::StatusOr<std::string> get(const std::string& path);
  absl::StatusOr<std::string> post(const std::string& path, std::string json);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
