#pragma once

// Included by one file for each instruction set, which gives it that set's flags: everything has
// internal linkage. Vectors of 16 are the compiler's, which cuts them to what the set has.

#include <cstring>

#include "kernels/cpu/compress/tile_scores.h"

namespace tessera {
namespace {

using Lanes = float __attribute__((vector_size(64)));
using IntLanes = int32_t __attribute__((vector_size(64)));
using HalfLanes = uint16_t __attribute__((vector_size(32)));

template <class V>
void load(const void* from, V& to) {
  std::memcpy(&to, from, sizeof(V));
}

// f16 that are finite: the exponent is moved by a multiplication, which subnormals survive.
void widen(const std::byte* from, float* to) {
  HalfLanes halves;
  load(from, halves);
  const IntLanes bits = __builtin_convertvector(halves, IntLanes);
  const IntLanes magnitude = (bits & 0x7fff) << 13;
  Lanes value;
  std::memcpy(&value, &magnitude, sizeof(value));
  value *= 0x1p112f;
  IntLanes signed_bits;
  std::memcpy(&signed_bits, &value, sizeof(value));
  signed_bits |= (bits & 0x8000) << 16;
  std::memcpy(to, &signed_bits, sizeof(signed_bits));
}

void unpack_codes(const KeyTile& tile, float* keys) {
  const int32_t shared = 8 / tile.bits;
  const int32_t mask = (1 << tile.bits) - 1;
  const int32_t sub_lines = (tile.head_dim + 3) / 4;
  for (int32_t s = 0; s < sub_lines; ++s) {
    IntLanes line;
    load(tile.keys + s / shared * 64, line);
    line >>= s % shared * tile.bits;
    for (int32_t e = 0; e < 4; ++e) {
      const Lanes codes = __builtin_convertvector((line >> (8 * e)) & mask, Lanes);
      std::memcpy(keys + (4 * s + e) * kScoreLanes, &codes, sizeof(codes));
    }
  }
}

void unpack(const KeyTile& tile, float* keys) {
  if (tile.bits == 32) {
    std::memcpy(keys, tile.keys,
                static_cast<size_t>(tile.head_dim) * kScoreLanes * sizeof(float));
  } else if (tile.bits == 16) {
    for (int32_t channel = 0; channel < tile.head_dim; ++channel) {
      widen(tile.keys + channel * kScoreLanes * 2, keys + channel * kScoreLanes);
    }
  } else {
    unpack_codes(tile, keys);
  }
}

// 2^x for x <= 1 or so; below -126 nothing.
void exp2_lanes(Lanes& x) {
  const IntLanes below = x < -126.0f;
  const Lanes whole = (x + 0x1.8p23f) - 0x1.8p23f;
  const Lanes f = x - whole;
  Lanes q = f * 0x1.44138ap-13f + 0x1.5f0890p-10f;
  q = q * f + 0x1.3b2a54p-7f;
  q = q * f + 0x1.c6af6cp-5f;
  q = q * f + 0x1.ebfbe0p-3f;
  q = q * f + 0x1.62e430p-1f;
  q = q * f + 1.0f;
  IntLanes bits;
  std::memcpy(&bits, &q, sizeof(bits));
  bits += __builtin_convertvector(whole, IntLanes) << 23;
  bits &= ~below;
  std::memcpy(&x, &bits, sizeof(bits));
}

template <int kHeads>
void add_heads(const KeyTile& tile, const float* keys, const ScoreKernels::Queries& queries,
               int32_t first, Lanes& sums) {
  Lanes dots[kHeads] = {};
  const float* floats = queries.floats + first * queries.stride;
  for (int32_t channel = 0; channel < tile.head_dim; ++channel) {
    Lanes key;
    load(keys + channel * kScoreLanes, key);
    for (int h = 0; h < kHeads; ++h) {
      dots[h] += floats[h * queries.stride + channel] * key;
    }
  }
  Lanes scales = Lanes{} + 1.0f;
  Lanes zeros = {};
  if (tile.bits <= 8) {
    float widened[kScoreLanes];
    widen(tile.scales, widened);
    load(widened, scales);
    widen(tile.zeros, widened);
    load(widened, zeros);
  }
  for (int h = 0; h < kHeads; ++h) {
    Lanes p = dots[h] * scales + queries.sums[first + h] * zeros - queries.log2_sums[first + h];
    exp2_lanes(p);
    sums += queries.squares ? p * p : p;
  }
}

void add(const KeyTile& tile, const float* keys, const ScoreKernels::Queries& queries,
         float* sums) {
  Lanes lanes;
  load(sums, lanes);
  int32_t head = 0;
  for (; head + 4 <= queries.heads; head += 4) {
    add_heads<4>(tile, keys, queries, head, lanes);
  }
  for (; head < queries.heads; ++head) {
    add_heads<1>(tile, keys, queries, head, lanes);
  }
  std::memcpy(sums, &lanes, sizeof(lanes));
}

}  // namespace
}  // namespace tessera
