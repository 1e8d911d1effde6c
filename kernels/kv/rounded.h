#pragma once

namespace tessera {

// Returns: a * b, rounded before anything is added to it, so that host and device agree bit for
// bit. The compilers for the host do not fuse products with sums in ISO mode; nvcc does.
constexpr double rounded_product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

}  // namespace tessera
