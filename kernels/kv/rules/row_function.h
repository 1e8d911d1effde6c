#pragma once

// Marks a function that runs where a backend has its rows: for nvcc that is the device.
#ifdef __CUDACC__
#define TESSERA_ROW_FUNCTION static __device__ inline
#else
#define TESSERA_ROW_FUNCTION static inline
#endif

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
