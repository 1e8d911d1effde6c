#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "eval/measurement/seeded_random.h"

namespace tessera::load {

// Returns: a seed of its own for each (seed, number), so that one request can be repeated alone.
inline uint64_t seed_of(uint64_t seed, uint64_t number) {
  return SeededRandom(seed ^ (number * 0xD1342543DE82EF95u)).next();
}

// Random variates from a seed, the same with every standard library.
class Variates {
 public:
  explicit Variates(uint64_t seed) : random_(seed) {}

  // Uniform in (0, 1), never one of the ends.
  double uniform() { return (static_cast<double>(random_.next() >> 11) + 0.5) * 0x1p-53; }

  // Mean 1.
  double exponential() { return -std::log(uniform()); }

  // Mean 0, standard deviation 1.
  double normal() {
    const double radius = std::sqrt(2 * exponential());
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  // Mean `shape`, scale 1 (Marsaglia and Tsang's method).
  // Requires: shape > 0.
  double gamma(double shape) {
    if (shape < 1) {
      const double larger = gamma(shape + 1);
      return larger * std::pow(uniform(), 1 / shape);
    }
    const double d = shape - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d);
    while (true) {
      const double x = normal();
      const double v = std::pow(1 + c * x, 3);
      if (v > 0 && std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
        return d * v;
      }
    }
  }

  double beta(double a, double b) {
    const double x = gamma(a);
    return x / (x + gamma(b));
  }

  SeededRandom& integers() { return random_; }

 private:
  SeededRandom random_;
};

}  // namespace tessera::load
