#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

// Random numbers that are the same on every machine and with every standard library (SplitMix64).
class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // Uniform in [0, count).
  // Requires: 0 < count < 2^32.
  size_t below(size_t count) {
    return static_cast<size_t>(((next() >> 32) * static_cast<uint64_t>(count)) >> 32);
  }

  // Uniform in [min, max].
  size_t between(size_t min, size_t max) { return min + below(max - min + 1); }

  template <class T>
  const T& choice(std::span<const T> values) {
    return values[below(values.size())];
  }

 private:
  uint64_t state_;
};

}  // namespace tessera
