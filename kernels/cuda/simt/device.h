#pragma once

// Implementation of simt.h on a GPU: each name is one instruction, or the few that CUDA has for it.

#include <cuda_runtime.h>

#include <cstddef>
#include <span>

#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/cuda/stream/cuda_stream.h"

#define TESSERA_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
#define TESSERA_DEVICE __device__ __forceinline__
#define TESSERA_BOTH inline __host__ __device__
#define TESSERA_PRAGMA(text) _Pragma(#text)
#define TESSERA_UNROLL _Pragma("unroll")
#define TESSERA_UNROLL_BY(count) TESSERA_PRAGMA(unroll count)

namespace tessera::simt {

template <class... Parameters, class... Args>
void launch(Stream stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            const Args&... args) {
  if (shape.grid_x == 0 || shape.grid_y == 0) {
    return;
  }
  [&](Parameters... converted) {
    void* places[] = {&converted...};
    cuda::CudaStream::of(stream).launch(shape, reinterpret_cast<const void*>(kernel), places);
  }(args...);
}

template <class T>
const T* mirror(std::span<const T> plan, Stream stream) {
  return static_cast<const T*>(cuda::CudaStream::of(stream).mirror(plan.data(), plan.size_bytes()));
}

template <class T>
T* collect(std::span<T> numbers, Stream stream) {
  return static_cast<T*>(
      cuda::CudaStream::of(stream).collect(numbers.data(), numbers.size_bytes()));
}

inline void download(void* to, const void* from, int64_t bytes, Stream stream) {
  cuda::CudaStream::of(stream).download(to, from, static_cast<size_t>(bytes));
}
inline std::span<std::byte> staging(Stream stream) {
  return cuda::CudaStream::of(stream).staging();
}
inline void wait(Stream stream) {
  cuda::CudaStream::of(stream).synchronize();
}
inline const DeviceLimits& limits(Stream stream) {
  return cuda::CudaStream::of(stream).limits();
}

template <class T>
TESSERA_DEVICE T& shared() {
  extern __shared__ __align__(128) unsigned char memory[];
  return *reinterpret_cast<T*>(memory);
}

TESSERA_DEVICE int32_t thread() {
  return static_cast<int32_t>(threadIdx.x);
}
TESSERA_DEVICE int32_t threads() {
  return static_cast<int32_t>(blockDim.x);
}
TESSERA_DEVICE int32_t lane() {
  return static_cast<int32_t>(threadIdx.x % 32u);
}
TESSERA_DEVICE int32_t warp() {
  return static_cast<int32_t>(threadIdx.x / 32u);
}
TESSERA_DEVICE int32_t not_kept(int32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
TESSERA_DEVICE int32_t block_x() {
  return static_cast<int32_t>(blockIdx.x);
}
TESSERA_DEVICE int32_t block_y() {
  return static_cast<int32_t>(blockIdx.y);
}
TESSERA_DEVICE int32_t grid_x() {
  return static_cast<int32_t>(gridDim.x);
}
TESSERA_DEVICE int32_t grid_y() {
  return static_cast<int32_t>(gridDim.y);
}

TESSERA_DEVICE void sync_block() {
  __syncthreads();
}
TESSERA_DEVICE void sync_warp() {
  __syncwarp();
}

// Architectures before sm_90 have no clusters, and so each block is one of its own.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
TESSERA_DEVICE int32_t cluster_rank() {
  int32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
TESSERA_DEVICE int32_t cluster_blocks() {
  int32_t blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
TESSERA_DEVICE void sync_cluster() {
  if (cluster_blocks() == 1) {
    __syncthreads();
    return;
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}
template <class T>
TESSERA_DEVICE T* in_block(T* place, int32_t rank) {
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(place), "r"(rank));
  return there;
}
#else
TESSERA_DEVICE int32_t cluster_rank() {
  return 0;
}
TESSERA_DEVICE int32_t cluster_blocks() {
  return 1;
}
TESSERA_DEVICE void sync_cluster() {
  __syncthreads();
}
template <class T>
TESSERA_DEVICE T* in_block(T* place, int32_t) {
  return place;
}
#endif

template <class T>
TESSERA_DEVICE T shuffle(T value, int32_t from) {
  return __shfl_sync(0xffffffffu, value, from);
}
template <class T>
TESSERA_DEVICE T shuffle_xor(T value, int32_t mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

TESSERA_DEVICE uint32_t ballot(bool condition) {
  return __ballot_sync(0xffffffffu, condition);
}
TESSERA_DEVICE int32_t popcount(uint32_t word) {
  return __popc(word);
}

template <class T>
TESSERA_DEVICE T atomic_add(T* address, T value) {
  return atomicAdd(address, value);
}
// There is no 16-bit atomic addition. The operation changes the 32-bit word that holds two counts.
// The other count is unaffected, because a count never overflows or underflows.
template <>
TESSERA_DEVICE uint16_t atomic_add(uint16_t* address, uint16_t value) {
  const uintptr_t place = reinterpret_cast<uintptr_t>(address);
  const uint32_t shift = (place & 2u) * 8u;
  auto* word = reinterpret_cast<unsigned*>(place & ~uintptr_t{3});
  return static_cast<uint16_t>(atomicAdd(word, static_cast<unsigned>(value) << shift) >> shift);
}
TESSERA_DEVICE uint16_t subtract_owner(uint16_t* address) {
  const uintptr_t place = reinterpret_cast<uintptr_t>(address);
  const uint32_t shift = (place & 2u) * 8u;
  auto* word = reinterpret_cast<unsigned*>(place & ~uintptr_t{3});
  return static_cast<uint16_t>(atomicSub(word, 1u << shift) >> shift);
}

// A trap has no message, but a message takes up to 50 registers in the largest kernels.
TESSERA_DEVICE void check(bool condition) {
  if (!condition) {
    __trap();
  }
}

TESSERA_DEVICE void assume(bool condition) {
  __builtin_assume(condition);
}

TESSERA_DEVICE Words load_words(const void* from) {
  const uint4 words = *static_cast<const uint4*>(from);
  return {{words.x, words.y, words.z, words.w}};
}
TESSERA_DEVICE WordPair load_pair(const void* from) {
  const uint2 words = *static_cast<const uint2*>(from);
  return {{words.x, words.y}};
}
// The address space is named, so that pointers from shared memory need no generic load. Not
// volatile, so that the compiler moves loads up.
TESSERA_DEVICE Words load_global(const void* from) {
  Words words;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(words.at[0]), "=r"(words.at[1]), "=r"(words.at[2]), "=r"(words.at[3])
      : "l"(__cvta_generic_to_global(from)));
  return words;
}
TESSERA_DEVICE WordPair load_global_pair(const void* from) {
  WordPair words;
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
      : "=r"(words.at[0]), "=r"(words.at[1])
      : "l"(__cvta_generic_to_global(from)));
  return words;
}
TESSERA_DEVICE uint32_t load_global_word(const void* from) {
  uint32_t word;
  asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];"
      : "=r"(word)
      : "l"(__cvta_generic_to_global(from)));
  return word;
}
// Neither a copy nor a transposed load says that it touches memory. The compiler moves none of them
// over a wait for copies, an end of a group or a barrier.
TESSERA_DEVICE void copy_ahead(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(__cvta_generic_to_global(from)));
}
TESSERA_DEVICE void end_copy_group() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int kLater>
TESSERA_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kLater) : "memory");
}
TESSERA_DEVICE Words load_transposed(const void* row) {
  Words words;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.at[0]), "=r"(words.at[1]), "=r"(words.at[2]), "=r"(words.at[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
  return words;
}
TESSERA_DEVICE void store_words(void* to, const Words& words) {
  *static_cast<uint4*>(to) = make_uint4(words.at[0], words.at[1], words.at[2], words.at[3]);
}
TESSERA_DEVICE float fma(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
TESSERA_DEVICE float exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
TESSERA_DEVICE float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
TESSERA_DEVICE float exp(float x) {
  return ::expf(x);
}
TESSERA_DEVICE float erf(float x) {
  return ::erff(x);
}
TESSERA_DEVICE float tanh(float x) {
  return ::tanhf(x);
}
TESSERA_DEVICE float log(float x) {
  return ::logf(x);
}
TESSERA_DEVICE float max(float a, float b) {
  return ::fmaxf(a, b);
}
TESSERA_DEVICE float min(float a, float b) {
  return ::fminf(a, b);
}
TESSERA_DEVICE float abs(float x) {
  return ::fabsf(x);
}
TESSERA_DEVICE float sqrt(float x) {
  return ::sqrtf(x);
}
TESSERA_DEVICE int32_t round(float x) {
  return __float2int_rn(x);
}

TESSERA_DEVICE float as_f32(f16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
TESSERA_DEVICE float as_f32(bf16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
TESSERA_DEVICE f16 as_f16(float value) {
  f16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
TESSERA_DEVICE uint32_t pack_f16(float low, float high) {
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
TESSERA_DEVICE uint32_t add_f16(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
TESSERA_DEVICE bool has_bit(uint32_t word, int32_t bit) {
  uint32_t masked;
  asm("and.b32 %0, %1, %2;" : "=r"(masked) : "r"(word), "r"(1u << bit));
  return masked != 0;
}
TESSERA_DEVICE uint32_t merge_low(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x5410);
}
TESSERA_DEVICE uint32_t merge_high(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}
TESSERA_DEVICE uint32_t merge_even(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x6420);
}
TESSERA_DEVICE uint32_t merge_odd(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x7531);
}

TESSERA_DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
TESSERA_DEVICE void mma_u8s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace tessera::simt
