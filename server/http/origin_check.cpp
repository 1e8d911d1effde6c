#include "server/http/origin_check.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace tessera {
namespace {

std::string lower(std::string_view text) {
  return absl::AsciiStrToLower({text.data(), text.size()});
}

// Returns: the host of "host:port" or "[v6]:port", in lower case, without brackets and final dot.
std::string host_of(std::string_view authority) {
  if (authority.starts_with('[')) {
    return lower(authority.substr(1, authority.find(']') - 1));
  }
  std::string host = lower(authority.substr(0, authority.find(':')));
  if (host.ends_with('.')) {
    host.pop_back();
  }
  return host;
}

// Returns: true for an IPv4 address of 127.0.0.0/8.
bool is_v4_loopback(std::string_view host) {
  return host.starts_with("127.") &&
         host.find_first_not_of("0123456789.") == std::string_view::npos &&
         std::count(host.begin(), host.end(), '.') == 3;
}

}  // namespace

bool is_loopback(std::string_view authority) {
  const std::string host = host_of(authority);
  return host == "localhost" || host.ends_with(".localhost") || host == "::1" ||
         is_v4_loopback(host);
}

bool is_listed(std::string_view authority, std::string_view hosts) {
  const std::string host = host_of(authority);
  while (!hosts.empty()) {
    const std::size_t end = std::min(hosts.find(','), hosts.size());
    if (host_of(hosts.substr(0, end)) == host) {
      return true;
    }
    hosts.remove_prefix(std::min(end + 1, hosts.size()));
  }
  return false;
}

bool from_elsewhere(const HttpRequest& request, const std::string& allowed_origin) {
  const std::string_view origin = request.header("origin");
  if (allowed_origin == "*" || (!allowed_origin.empty() && origin == allowed_origin)) {
    return false;
  }
  const std::string_view site = request.header("sec-fetch-site");
  if (!site.empty()) {
    return site != "none" && site != "same-origin";
  }
  if (origin.empty()) {
    return false;
  }
  const std::size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ||
         lower(origin.substr(scheme + 3)) != lower(request.header("host"));
}

}  // namespace tessera
