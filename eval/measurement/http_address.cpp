#include "eval/measurement/http_address.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<HttpAddress> HttpAddress::parse(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  if (url.substr(0, kScheme.size()) != kScheme) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--url: '", std::string(url), "' must begin with http:// (https is not supported)"));
  }
  const std::string_view rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view authority = rest.substr(0, slash);
  const size_t colon = authority.rfind(':');
  HttpAddress address;
  address.host = std::string(authority.substr(0, colon));
  address.port = colon == authority.npos ? "80" : std::string(authority.substr(colon + 1));
  address.prefix = std::string(rest.substr(slash));
  while (!address.prefix.empty() && address.prefix.back() == '/') {
    address.prefix.pop_back();
  }
  if (address.host.empty() || address.port.empty() ||
      address.port.find_first_not_of("0123456789") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("--url: '", std::string(url), "' is not http://HOST[:PORT][/PREFIX]"));
  }
  return address;
}

}  // namespace tessera
