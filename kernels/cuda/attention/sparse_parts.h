#pragma once

#include "kernels/cuda/attention/queries.h"
#include "kernels/kv/sparse_layout.h"

namespace tessera::cuda {

// Parts of sparse tiles in a warp's memory: 16 tokens with their kept channels as f16 and their
// bitmaps. SparseParts brings one part at a time, of any sparse format. CopiedParts copies all four
// parts of a tile, of a format whose bytes in a page are those of a SparsePart.

// Number of units of channels whose starts are known (SparsePart::starts). A lane's keys begin at a
// quarter of the channels, its values at an eighth.
inline constexpr int32_t kKeyUnits = 4;
inline constexpr int32_t kValueUnits = 8;

// kStride: f16 elements from token to token, at most.
template <int kDim, int kStride>
struct SparsePart {
  static constexpr int32_t kTokens = KvPageLayout::kKeyTile;
  static constexpr int32_t kStarts = 8;

  alignas(16) f16 kept[kTokens * kStride];
  alignas(16) uint32_t bitmaps[kTokens][kDim / 32];
  alignas(8) uint8_t starts[kTokens][kStarts];  // kept channels before each unit of channels

  // Makes a token's bitmap 0: a token that no pair sees may hold any bytes.
  TESSERA_DEVICE void clear(int32_t token) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < kDim / 32; ++i) {
      bitmaps[token][i] = 0;
    }
  }
  // Writes the starts of a token, for 4 or 8 units of channels.
  template <int kUnits>
  TESSERA_DEVICE void index(int32_t token) {
    constexpr int32_t kUnit = kDim / kUnits;
    constexpr uint32_t kMask = kUnit == 32 ? ~0u : (1u << kUnit % 32) - 1;
    constexpr uint32_t kOnes = 0x01010101;  // as a factor: sums of bytes
    uint32_t counts[kUnits / 4] = {};       // a byte for each unit
    TESSERA_UNROLL
    for (int32_t unit = 0; unit < kUnits; ++unit) {
      const uint32_t word = bitmaps[token][unit * kUnit / 32] >> unit * kUnit % 32;
      counts[unit / 4] += static_cast<uint32_t>(simt::popcount(word & kMask)) << 8 * (unit % 4);
    }
    auto* to = reinterpret_cast<uint32_t*>(starts[token]);
    to[0] = counts[0] * (kOnes << 8);
    if constexpr (kUnits == 8) {
      to[1] = counts[1] * (kOnes << 8) + (counts[0] * kOnes >> 24) * kOnes;
    }
  }
};

// Placement of the tokens' kept channels in the warp's memory. Lanes read neighbouring tokens at
// about the same offset. Tokens that would begin in the same banks are therefore padded by 16
// bytes.
struct Staging {
  int32_t stride;        // f16 elements from token to token
  uint32_t token_parts;  // 65536ths of a token in 16 bytes of a page, rounded up; 0: no padding

  TESSERA_DEVICE explicit Staging(const SparseSide& side)
      : stride(static_cast<int32_t>(side.kept_bytes) * 8 / side.bits), token_parts(0) {
    if (stride % 32 == 0) {  // then 16 bytes of a page belong to one token
      const auto kept_bytes = static_cast<uint32_t>(side.kept_bytes);
      stride += 8;
      token_parts = (16 * 65536 + kept_bytes - 1) / kept_bytes;
    }
  }
  // Returns: offset in f16 elements of a chunk, which is 16 bytes of a page.
  TESSERA_DEVICE int32_t place(int32_t chunk, int32_t chunk_halves) const {
    const auto token = static_cast<int32_t>(static_cast<uint32_t>(chunk) * token_parts >> 16);
    return chunk * chunk_halves + 8 * token;
  }
};

// kHalf1024 is 1024 in two f16: an integer of 4 bits in the lower byte of each adds its value. The
// other constant subtracts 1024 and the bias of the codes.
inline constexpr uint32_t kHalf1024 = 0x64006400;
inline constexpr uint32_t kLessNibbleBias = 0xe408e408;  // -(1024 + 8)

// Converts eight codes to f16.
TESSERA_DEVICE void put_nibbles(uint32_t codes, uint32_t* to) {
  codes ^= 0x88888888;
  TESSERA_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    const uint32_t two = codes >> 8 * i;
    to[i] = simt::add_f16((two & 0xf) | (two << 12 & 0xf0000) | kHalf1024, kLessNibbleBias);
  }
}

// Loads of 16 bytes that a lane has in flight: 16 tokens of s70 take three, of s50 five.
inline constexpr int32_t kStagedLoads = 3;

// A part of any sparse format: up to kDim channels of a token, and padding (Staging).
template <int kDim>
using AnyPart = SparsePart<kDim, kDim + 8>;

// Writes a chunk of 16 bytes to the warp's memory: kept channels as f16, or a part of the bitmaps.
template <int kDim>
TESSERA_DEVICE void put_chunk(const SparseSide& side, const Staging& staging, int32_t chunk,
                              const simt::Words& words, AnyPart<kDim>& part) {
  const auto chunks = static_cast<int32_t>(side.kept_bytes);
  if (chunk >= chunks) {
    simt::store_words(reinterpret_cast<std::byte*>(part.bitmaps) + 16 * (chunk - chunks), words);
    return;
  }
  f16* to = part.kept + staging.place(chunk, 128 / side.bits);
  if (side.bits == 16) {
    simt::store_words(to, words);
    return;
  }
  TESSERA_UNROLL
  for (int32_t i = 0; i < 2; ++i) {
    simt::Words halves[2];
    put_nibbles(words.at[2 * i], halves[0].at);
    put_nibbles(words.at[2 * i + 1], halves[1].at);
    simt::store_words(to + 16 * i, halves[0]);
    simt::store_words(to + 16 * i + 8, halves[1]);
  }
}

// Parts of a tile of any sparse format, one after the other in the warp's memory. 16 tokens of n
// bytes are n chunks of 16 bytes; the same holds for their bitmaps.
template <int kDim>
class SparseParts {
 public:
  // Requires: `tile` and `part`, the warp's memory for one, outlive this.
  TESSERA_DEVICE SparseParts(const SparseSide& side, const Tile& tile, AnyPart<kDim>& part)
      : side_(side), staging_(side), tile_(tile), part_(part) {}

  static constexpr int32_t kPartBytes = 0;  // from part to part

  TESSERA_DEVICE int32_t stride() const { return staging_.stride; }
  TESSERA_DEVICE const AnyPart<kDim>& at(int32_t) const { return part_; }

  // Brings part `index` of the tile. from: its keys (values).
  // Requires: all lanes call it, and have read the previous part.
  template <int kUnits>
  TESSERA_DEVICE void bring(int32_t index, const std::byte* from) {
    simt::sync_warp();
    const auto chunks = static_cast<int32_t>(side_.kept_bytes);
    const int32_t all = chunks + static_cast<int32_t>(side_.bitmap_bytes);
    TESSERA_UNROLL_BY(1)
    for (int32_t first = 0; first < all; first += kStagedLoads * simt::kWarp) {
      simt::Words words[kStagedLoads];
      TESSERA_UNROLL
      for (int32_t i = 0; i < kStagedLoads; ++i) {  // without a test, so that all are in flight
        const int32_t chunk = first + simt::kWarp * i + simt::lane();
        words[i] = simt::load_global(from + 16 * (chunk < all ? chunk : all - 1));
      }
      TESSERA_UNROLL
      for (int32_t i = 0; i < kStagedLoads; ++i) {
        const int32_t chunk = first + simt::kWarp * i + simt::lane();
        if (chunk < all) {
          put_chunk(side_, staging_, chunk, words[i], part_);
        }
      }
    }
    for (int32_t i = simt::lane(); side_.bitmap_bytes == 0 && i < kDim / 2; i += simt::kWarp) {
      const int32_t channels = side_.head_dim - 32 * (i % (kDim / 32));
      part_.bitmaps[i / (kDim / 32)][i % (kDim / 32)] = channels >= 32 ? 0xffffffff
                                                        : channels > 0 ? (1u << channels) - 1
                                                                       : 0;
    }
    simt::sync_warp();
    if (simt::lane() < AnyPart<kDim>::kTokens) {
      if (!tile_.sees(index * AnyPart<kDim>::kTokens + simt::lane())) {
        part_.clear(simt::lane());
      }
      part_.template index<kUnits>(simt::lane());
    }
    simt::sync_warp();
  }

 private:
  const SparseSide side_;
  const Staging staging_;
  const Tile& tile_;
  AnyPart<kDim>& part_;
};

// Returns: whether a tile's keys (values) can be CopiedParts: f16 with bitmaps, and tokens that
// begin in different banks without padding.
constexpr bool is_copied(const SparseSide& side) {
  return side.bits == 16 && side.bitmap_bytes == side.head_dim / 8 && side.kept % 32 != 0;
}

// All keys, or all values, of a tile of one format.
template <int kDim, int kKept>
struct CopiedParts {
  using Part = SparsePart<kDim, kKept>;
  static constexpr int32_t kChunks = 2 * kKept + kDim / 8;  // of 16 bytes, of a part in its page

  static constexpr int32_t kPartBytes = sizeof(Part);

  Part parts[Tile::kPlaces];

  TESSERA_DEVICE static constexpr int32_t stride() { return kKept; }
  TESSERA_DEVICE const Part& at(int32_t index) const { return parts[index]; }

  // Begins to copy the keys (values) of all parts. from: addresses of the parts' keys (values).
  TESSERA_DEVICE void copy(const std::byte* const (&from)[Tile::kPlaces]) {
    static_assert(offsetof(Part, bitmaps) == 32 * kKept, "a part is as its page has it");
    const int32_t of_lane = 16 * simt::lane();
    TESSERA_UNROLL
    for (int32_t i = 0; i < Tile::kPlaces; ++i) {
      auto* to = reinterpret_cast<std::byte*>(&parts[i]) + of_lane;
      const std::byte* source = from[i] + of_lane;
      TESSERA_UNROLL
      for (int32_t chunk = 0; chunk < kChunks; chunk += simt::kWarp) {
        if (chunk + simt::lane() < kChunks) {
          simt::copy_ahead(to + 16 * chunk, source + 16 * chunk);
        }
      }
    }
    simt::end_copy_group();
  }
  // Waits for the copies, and writes the tokens' starts. Requires: all lanes call it.
  template <int kUnits>
  TESSERA_DEVICE void wait(const Tile& tile) {
    simt::wait_for_copies<0>();
    simt::sync_warp();
    // A lane has the same token of every second part.
    constexpr int32_t kTokens = Part::kTokens;
    Part* const of_lane = parts + simt::lane() / kTokens;
    if (!tile.is_full()) {
      for (int32_t i = 0; i < Tile::kPlaces; i += 2) {
        if (!tile.sees(i * kTokens + simt::lane())) {
          of_lane[i].clear(simt::lane() % kTokens);
        }
      }
    }
    TESSERA_UNROLL
    for (int32_t i = 0; i < Tile::kPlaces; i += 2) {
      of_lane[i].template index<kUnits>(simt::lane() % kTokens);
    }
    simt::sync_warp();
  }
  template <int kUnits>
  TESSERA_DEVICE static void bring(int32_t, const std::byte*) {}  // all are there
};

// Memory of a warp for sparse tiles, in a kernel for Rows.
struct NoParts {};
template <int kDim, class Rows, bool kCopied>
struct SparseMemory {
  using Type = std::conditional_t<Rows::kOneFormat, NoParts, AnyPart<kDim>>;
};
template <int kDim, class Rows>
struct SparseMemory<kDim, Rows, true> {
  static constexpr KvPageLayout kLayout = KvPageLayout::make(Rows::kFormat, kDim, kKvGroup);
  static_assert(is_copied(sparse_keys(kLayout)) && is_copied(sparse_values(kLayout)));
  static_assert(sparse_keys(kLayout).kept == sparse_values(kLayout).kept);
  using Type = CopiedParts<kDim, sparse_keys(kLayout).kept>;
};

}  // namespace tessera::cuda
