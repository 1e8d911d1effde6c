#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// Where an OpenAI-compatible server listens: "http://HOST[:PORT][/PREFIX]".
struct HttpAddress {
  std::string host;
  std::string port;
  std::string prefix;  // before "/v1/..."; no slash at its end

  // Errors: InvalidArgument; https is refused by name.
  static absl::StatusOr<HttpAddress> parse(std::string_view url);
};

// One connection, opened when it is needed and kept. Blocking; one thread uses it.
class HttpClient {
 public:
  explicit HttpClient(HttpAddress address);
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;

  // The body of a 200 answer. Errors: Unavailable (no connection, or it broke); InvalidArgument for
  // any other answer, with its status and the beginning of its body.
  absl::StatusOr<std::string> get(const std::string& path);
  absl::StatusOr<std::string> post(const std::string& path, std::string json);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
