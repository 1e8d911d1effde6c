#pragma once

// The instructions that kernels are written in. One source runs on a GPU and, instruction by
// instruction, in tests on a machine without one. nvcc uses the hardware's instructions. Every
// other compiler uses an emulation with the same names (tests/kernels/cuda/emulator/): each thread
// of a block is a fiber, and collectives have the semantics of the PTX manual.
//
// Names in namespace tessera::simt, for kernels:
//   TESSERA_KERNEL(threads[, blocks])   marks a kernel: threads of a block, blocks a multiprocessor
//   TESSERA_DEVICE                      marks a function that kernels call
//   TESSERA_BOTH                        marks one that templates for host and device call as well
//   TESSERA_UNROLL                      before a loop whose arrays are kept in registers
//   TESSERA_UNROLL_BY(count)            before a loop of which `count` iterations overlap
//   shared<T>()                         the block's memory, sized by LaunchShape; never zeroed
//   thread() threads() lane() warp() block_x() block_y() grid_x() grid_y()
//   sync_block() sync_warp()            barriers. Requires: all threads of the block (all lanes of
//                                       the warp) call them. The emulation aborts if some do not.
//   cluster_rank() cluster_blocks()     the block's place in its cluster, and the cluster's size
//   sync_cluster()                      barrier of all threads of the cluster's blocks, which
//                                       orders their accesses; sync_block() in a cluster of one
//   in_block(place, rank)               address of the same place of shared memory in that block of
//                                       the cluster. Requires: a sync_cluster() before, because
//                                       blocks begin at any time, and one behind the accesses,
//                                       because a block that ends takes its memory along. The
//                                       emulation aborts if one is missing.
//   shuffle(x, lane)                    x of that lane, 32 or 64 bits; called by all lanes
//   shuffle_xor(x, mask)                x of lane ^ mask, 32 or 64 bits; called by all lanes
//   ballot(condition)                   bit i: that of lane i, in every lane; called by all lanes
//   popcount(word)                      number of set bits
//   atomic_add(address, x)              returns: the previous value
//   subtract_owner(address)             subtracts 1; returns: the previous value
//   check(condition)                    stops the kernel; fails only by a bug of this program
//   assume(condition)                   tells the compiler that the condition holds; only the
//                                       emulation tests it
//   not_kept(x)                         x. The compiler computes numbers that follow from it where
//                                       they are used, and keeps none in a register across a loop.
//   load_words, store_words             16 bytes at once
//   load_pair                           8 bytes at once
//   load_global, load_global_pair, load_global_word
//                                       16 (8, 4) bytes of global memory that nothing writes while
//                                       the kernel runs; read once, so not kept in L1
//   copy_ahead(to, from)                begins to copy 16 bytes of global memory, as load_global
//                                       reads them, to shared memory. `to` is used after the wait.
//   end_copy_group()                    the thread's copies since the last such call, if any, are
//                                       its next group
//   wait_for_copies<later>()            waits for the thread's groups but the last `later`. Other
//                                       threads see the copies behind a barrier.
//   load_transposed(row)                four matrices of 8 x 8 f16 of shared memory. Lane i names a
//                                       row (16 bytes) of matrix i / 8. Word m of lane (g, t) is
//                                       rows 2t and 2t + 1 of column g of matrix m; called by all
//                                       lanes
//   exp2, exp, log, sqrt, max, min, abs
//                                       exp2 is 0 where its result would be subnormal
//   reciprocal                          1 / x of a normal number, to one unit in the last place
//   fma                                 rounded once; nothing else is fused (-fmad=false)
//   round                               to nearest even
//   as_f32, as_f16, pack_f16            conversions
//   merge_low, merge_high               the lower (upper) halves of two words, the first's lowest
//   merge_even, merge_odd               bytes 0 and 2 (1 and 3) of two words, the first's lowest
//   has_bit(word, bit)                  in a form of which the compiler gets seven bits of a byte
//                                       by one instruction
//   add_f16(a, b)                       two words of two f16 each, rounded to nearest even
//   mma_f16, mma_u8s8                   tensor cores; the fragments are described below
// Names for the host:
//   launch(stream, shape, kernel, args...)  starts a kernel; arguments are copied
//   mirror(span, stream)                device address of a plan's data (host memory), for kernels
//                                       of that stream
//   collect(span, stream)               zeroed memory for numbers that kernels write; `span` (host
//                                       memory) has them once the host has waited
//   download(to, from, bytes, stream)   copies to host memory after all launched work; waits
//   staging(stream)                     memory that host and kernels access, with a wait between
//   wait(stream)                        waits for all launched work
//   limits(stream)                      abilities of the stream's device
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

#include "kernels/cuda/stream/launch_shape.h"

namespace tessera::simt {

struct alignas(16) Words {
  uint32_t at[4];
};
struct alignas(8) WordPair {
  uint32_t at[2];
};

}  // namespace tessera::simt

#if defined(__CUDACC__)
#include "kernels/cuda/simt/device.h"
#else
#include TESSERA_SIMT_EMULATION  // a definition of the emulator's library
#endif
