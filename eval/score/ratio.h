#pragma once

namespace tessera {

// A mean as a numerator and a denominator, so that items can be summed and resampled.
struct Ratio {
  double sum = 0;
  double of = 0;

  void add(const Ratio& other) {
    sum += other.sum;
    of += other.of;
  }
  Ratio times(double factor) const { return {sum * factor, of}; }
  double value() const { return sum / of; }
};

}  // namespace tessera
