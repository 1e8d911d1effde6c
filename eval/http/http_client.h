#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// Address of an OpenAI-compatible server: "http://HOST[:PORT][/PREFIX]".
struct HttpAddress {
  std::string host;
  std::string port;
  std::string prefix;  // path before "/v1/..."; no trailing slash

  // Errors: InvalidArgument; for https the message says that it is not supported.
  static absl::StatusOr<HttpAddress> parse(std::string_view url);
};

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
