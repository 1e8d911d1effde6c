#pragma once

// The instructions that kernels are written in, so that one source runs on a GPU and, instruction
// by instruction, in tests on a machine without one. nvcc gets the hardware's; every other compiler
// gets an emulation with the same names (simt/emulation.h), in which each thread of a block is a
// fiber and collectives have the semantics that the PTX manual documents.
//
// What both have, in namespace tessera::simt:
//   TESSERA_KERNEL(threads[, blocks])   marks a kernel: of so many threads a block, so many blocks
//   a
//                                       multiprocessor
//   TESSERA_DEVICE                      marks a function that kernels call
//   TESSERA_UNROLL                      before a loop whose arrays are to be registers
//   TESSERA_UNROLL_BY(count)            before a loop of which so many rounds are to overlap
//   launch(stream, shape, kernel, args...)   starts a kernel; arguments are copied
//   shared<T>()                         the block's memory, as asked for in the shape; never zero
//   thread() threads() lane() warp() block_x() block_y() grid_x() grid_y()
//   sync_block() sync_warp()            all threads of the block, all lanes of the warp: every one
//                                       of them, always. The emulation aborts where some do not
//                                       come.
//   shuffle(x, lane), shuffle_xor(x, mask)   of 32 or 64 bits, by all lanes
//   ballot(condition)                   bit i: that of lane i; by all lanes, in every lane
//   popcount(word)                      bits that are set
//   atomic_add(address, x), subtract_owner(address)  both give what stood there before;
//   subtract_owner subtracts 1 check(condition)                    stops the kernel where only our
//   own bug can load_words, store_words             16 bytes at once exp2, exp, log, sqrt, max,
//   min, abs, fma (rounded once), round (to nearest even) as_f32, as_f16, pack_f16, merge_low,
//   merge_high   conversions and bit moves add_f16(a, b)                       of two words of two
//   f16 each, rounded to nearest even unfused(a, b)                       a * b in double, rounded
//   before anything is added to it mma_f16, mma_u8s8                   tensor cores; where each
//   lane's elements stand is said below
// and for the host:
//   mirror(span, stream)                a plan's data (host memory) as kernels of that stream see
//   it collect(span, stream)               zeroes for kernels to write numbers to, which are in
//   `span`
//                                       (host memory) once the host has waited
//   download(to, from, bytes, stream)   to host memory, once all that was launched is done; waits
//   staging(stream)                     memory that both host and kernels reach; wait(stream)
//                                       between
//
// Fragments of the tensor cores' products D = A B + C (PTX ISA, "Matrix Fragments for mma.m16n8k16"
// and "mma.m16n8k32"), with g = lane / 4 and t = lane % 4:
//   D, C  [16][8]   d[0], d[1]: row g, columns 2t, 2t + 1; d[2], d[3]: row g + 8, the same columns
//   f16   A[16][16] a[0]: row g, k = 2t, 2t + 1; a[1]: row g + 8; a[2], a[3]: the same at k + 8
//         B[16][8]  b[0]: k = 2t, 2t + 1, column g; b[1]: k + 8
//   bytes A[16][32] a[0]: row g, k = 4t .. 4t + 3; a[1]: row g + 8; a[2], a[3]: the same at k + 16
//         B[32][8]  b[0]: k = 4t .. 4t + 3, column g; b[1]: k + 16
// The first element of a word is in its lowest bits.

#include <cstdint>

namespace tessera::simt {

inline constexpr int32_t kWarp = 32;  // lanes

struct LaunchShape {
  int32_t grid_x = 1;  // no block where one of these is 0
  int32_t grid_y = 1;
  int32_t threads = kWarp;
  int32_t shared_bytes = 0;
};

struct alignas(16) Words {
  uint32_t at[4];
};

}  // namespace tessera::simt

#if defined(__CUDACC__)
#include "kernels/cuda/simt/device.h"
#else
#include "kernels/cuda/simt/emulation.h"
#endif
