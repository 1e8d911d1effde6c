#pragma once

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

}  // namespace tessera
