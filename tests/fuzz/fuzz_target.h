#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

// Called by libFuzzer with each input, and by replay.cpp with each file of a corpus. Each
// *_fuzz.cpp defines it for one parser.
// Returns: 0 for any bytes. A violated invariant aborts.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tessera {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Splits an input such as a template and messages at lines "%%".
// Returns: 1 to `max` parts; the last one has the rest.
inline std::vector<std::string_view> parts_of(std::string_view input, size_t max) {
  constexpr std::string_view kBorder = "\n%%\n";
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < max) {
    const size_t at = input.find(kBorder);
    if (at == std::string_view::npos) break;
    parts.push_back(input.substr(0, at));
    input.remove_prefix(at + kBorder.size());
  }
  parts.push_back(input);
  return parts;
}

}  // namespace tessera
