#pragma once

#include <cstdint>
#include <string>

namespace tessera {

// "127.0.0.1:80", "[::1]:80": an address and a port as a URL has them.
inline std::string authority(const std::string& address, int32_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

}  // namespace tessera
