#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

inline constexpr uint64_t kHashFactor = 0x9e3779b97f4a7c15;

constexpr uint64_t mixed_hash(uint64_t x) {
  x = (x ^ x >> 32) * kHashFactor;
  return x ^ x >> 29;
}

// Returns: a hash of the tokens of a prefix block, by which the prefix cache finds it and routers
// name it. Clients can make two blocks of one hash, so tokens are compared too.
constexpr uint64_t block_hash(std::span<const int32_t> tokens) {
  // Four independent sums, because the latency of a multiplication covers the start of four.
  uint64_t sums[4] = {1, 2, 3, 4};
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint64_t& sum = sums[i % 4];
    sum = std::rotl((sum ^ static_cast<uint32_t>(tokens[i])) * kHashFactor, 31);
  }
  return mixed_hash(mixed_hash(mixed_hash(sums[0]) ^ sums[1]) ^
                    mixed_hash(mixed_hash(sums[2]) ^ sums[3]));
}

}  // namespace tessera
