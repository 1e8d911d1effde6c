#pragma once

// Marks a function that runs where a backend has its rows: for nvcc that is the device.
#ifdef __CUDACC__
#define TESSERA_ROW_FUNCTION static __device__ inline
#else
#define TESSERA_ROW_FUNCTION static inline
#endif
