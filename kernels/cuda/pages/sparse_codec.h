#pragma once

#include <bit>

#include "kernels/cuda/pages/quantiser.h"
#include "kernels/kv/sparse_layout.h"

namespace tessera::cuda {

// Codec for tokens of sparse formats, by one warp for each token. It writes the bytes of
// kernels/kv/sparse_layout.h. Tokens share no bytes, so warps write neighbours at the same
// time.
inline constexpr int32_t kMaxSparseDim = 128;
// Words of a bitmap; those beyond head_dim are 0.
inline constexpr int32_t kSparseWords = kMaxSparseDim / simt::kWarp;

// Returns: one channel of a stored token's key (value), as f32. `tile`: keys (values) of its tile.
// `scale`: scale of codes; unused for f16.
TESSERA_DEVICE float sparse_channel(const SparseSide& side, const std::byte* tile, int32_t lane,
                                    float scale, int32_t channel) {
  int32_t place = channel;
  if (side.bitmap_bytes > 0) {
    const auto* bitmap = reinterpret_cast<const uint32_t*>(tile + side.bitmap_offset(lane));
    const uint32_t bit = 1u << (channel % 32);
    if ((bitmap[channel / 32] & bit) == 0) {
      return 0;
    }
    place = simt::popcount(bitmap[channel / 32] & (bit - 1));
    for (int32_t word = 0; word < channel / 32; ++word) {
      place += simt::popcount(bitmap[word]);
    }
  }
  const std::byte* kept = tile + side.kept_offset(lane);
  if (side.bits == 16) {
    return simt::as_f32(reinterpret_cast<const f16*>(kept)[place]);
  }
  const auto byte = static_cast<int8_t>(kept[place / 2]);
  const int32_t code = static_cast<int8_t>(byte << (place % 2 == 0 ? 4 : 0)) >> 4;
  return static_cast<float>(code) * scale;
}

// Bit c % 32 of word c / 32 is set if channel c is kept. The same in all lanes.
struct KeptChannels {
  uint32_t words[kSparseWords] = {};

  // Returns: number of kept channels before channel 32 word + lane.
  TESSERA_DEVICE int32_t before(int32_t word) const {
    int32_t count = simt::popcount(words[word] & ((1u << simt::lane()) - 1));
    TESSERA_UNROLL
    for (int32_t i = 0; i < kSparseWords; ++i) {
      count += i < word ? simt::popcount(words[i]) : 0;
    }
    return count;
  }
};

// Shared memory of one warp.
struct SparseMemory {
  uint32_t scores[kMaxSparseDim];
};

// Returns: the side.kept channels of highest score; of equal scores the lower channel. A channel is
// kept if fewer than side.kept others precede it. Scores are compared by their bits.
// Requires: score(channel) >= 0; all lanes call it.
template <class Score>
TESSERA_DEVICE KeptChannels chosen_channels(const SparseSide& side, Score&& score,
                                            SparseMemory& memory) {
  simt::sync_warp();  // the previous scores have been read
  uint32_t own[kSparseWords] = {};
  int32_t rank[kSparseWords] = {};
  TESSERA_UNROLL
  for (int32_t i = 0; i < kSparseWords; ++i) {
    const int32_t channel = simt::kWarp * i + simt::lane();
    if (channel < side.head_dim) {
      own[i] = std::bit_cast<uint32_t>(score(channel));
      memory.scores[channel] = own[i];
    }
  }
  simt::sync_warp();
  TESSERA_UNROLL_BY(4)
  for (int32_t other = 0; other < side.head_dim; ++other) {
    const uint32_t than = memory.scores[other];
    TESSERA_UNROLL
    for (int32_t i = 0; i < kSparseWords && simt::kWarp * i < side.head_dim; ++i) {
      const bool lower = other < simt::kWarp * i + simt::lane();
      rank[i] += than > own[i] || (than == own[i] && lower) ? 1 : 0;
    }
  }
  KeptChannels kept;
  TESSERA_UNROLL
  for (int32_t i = 0; i < kSparseWords; ++i) {
    const bool inside = simt::kWarp * i + simt::lane() < side.head_dim;
    kept.words[i] = simt::ballot(inside && rank[i] < side.kept);
  }
  return kept;
}

// Writes the kept channels of a token's key (value). channel(c): the channel's value. `tile`: keys
// (values) of its tile. `scales`: [kKeyTile], of the tile's tokens; not written for f16.
template <class ChannelAt>
TESSERA_DEVICE void put_kept(const SparseSide& side, const KeptChannels& kept, int32_t lane,
                             ChannelAt&& channel, std::byte* tile, f16* scales) {
  float own[kSparseWords] = {};
  bool is_kept[kSparseWords];
  float largest = 0;
  TESSERA_UNROLL
  for (int32_t i = 0; i < kSparseWords; ++i) {
    is_kept[i] = (kept.words[i] >> simt::lane() & 1) != 0;
    own[i] = is_kept[i] ? channel(simt::kWarp * i + simt::lane()) : 0.0f;
    largest = simt::max(largest, simt::abs(own[i]));
    if (simt::lane() == 0 && 4 * i < side.bitmap_bytes) {  // one lane: `words` are registers
      reinterpret_cast<uint32_t*>(tile + side.bitmap_offset(lane))[i] = kept.words[i];
    }
  }
  std::byte* to = tile + side.kept_offset(lane);
  if (!side.is_codes()) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < kSparseWords; ++i) {
      if (is_kept[i]) {
        reinterpret_cast<f16*>(to)[kept.before(i)] = to_stored_f16(own[i]);
      }
    }
    return;
  }
  const auto last = static_cast<float>(largest_sparse_code(side.bits));
  const f16 stored_scale = to_stored_f16(simt::warp_max(largest) / last);
  const float scale = simt::as_f32(stored_scale);
  if (simt::lane() == 0) {
    scales[lane] = stored_scale;
  }
  const auto code = [&](float x) {
    return scale > 0 ? simt::round(simt::min(simt::max(x / scale, -last), last)) : 0;
  };
  // Two codes of 4 bits share a byte. The lower one is written first, with 0 in the upper half.
  TESSERA_UNROLL_BY(1)
  for (int32_t half = 0; half < 2; ++half) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < kSparseWords; ++i) {
      const int32_t place = kept.before(i);
      if (!is_kept[i]) {
        continue;
      }
      if (place % 2 == half) {
        const auto bits = static_cast<std::byte>((code(own[i]) & 15) << 4 * half);
        to[place / 2] = half == 0 ? bits : to[place / 2] | bits;
      }
    }
    simt::sync_warp();
  }
}

}  // namespace tessera::cuda
