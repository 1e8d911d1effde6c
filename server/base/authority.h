#pragma once

#include <cstdint>
#include <string>

namespace tessera {

// Returns: address and port in the form of a URL, such as "127.0.0.1:80" or "[::1]:80".
inline std::string authority(const std::string& address, int32_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

}  // namespace tessera
