#pragma once

#include <algorithm>

#include "kernels/cpu/linear/amx_tiles.h"

// Tiles of blocks of integers. A tile product sums the inputs of one block, so its sums are exact
// integers, as those of vectors are. Vectors then scale and add them in the order of tile_blocks.h.
// So AMX agrees bit for bit with all other instruction sets, and few rows can use vectors.
//
// A product takes 16 cycles, also where a block fills half of its operands. The store of its sums
// takes 16 more. Vectors need about as long to scale and add them. So a step works on three blocks:
// it unpacks the codes of the next one, multiplies one, and scales the sums of the one before.
namespace tessera::amx {
namespace {

// Registers for blocks of kInputs inputs: activations are [16][kInputs] codes, weights
// [kInputs / 4][16] units.
template <int kInputs>
constexpr TileConfig block_config() {
  TileConfig config;
  for (int i = kActivations; i < kWeights; ++i) {
    config.row_bytes[i] = kInputs;
    config.rows[i + kWeights - kActivations] = kInputs / 4;
  }
  return config;
}
template <int kInputs>
constexpr TileConfig kBlockConfig = block_config<kInputs>();

// The numbers of a block of weights, of two vectors of outputs.
struct BlockScales {
  __m512 scale[2];
  __m512 minimum[2];  // if the format has minimums
};

// Up to 32 rows by a panel.
template <WeightFormat kFormat>
struct BlockProduct {
  static constexpr int kHigh = 2;
  static constexpr int kVectors = 2;  // of outputs
  static constexpr WeightEncoding kStored = encoding(kFormat);
  using Weights = BlockTile<Simd512, kFormat, 1, kVectors, true>;

  static constexpr int kParts = kHigh * kVectors;  // products of a block, 16 rows by 16 outputs
  static constexpr int64_t kPartBytes = kTileRows * kTileRowBytes;
  static constexpr int kVectorBytes = kStored.block / 4 * kTileRowBytes;  // codes

  // Parts of sums and totals are 4 KiB apart, and a part of one is used between the others' parts.
  // A load would wait for a store whose address has the same last 12 bits.
  struct Scratch {
    alignas(64) std::byte sums[2][4096];
    alignas(64) float totals[1024];
    alignas(64) std::byte codes[2][kVectors * kVectorBytes];
  };
  static_assert(kParts * kPartBytes <= 4096);

  // Unpacks the next block. codes: [kVectors][block / 4][16] units of signed bytes.
  // Returns: its scales.
  TESSERA_INLINE static BlockScales take(Weights& weights, std::byte* codes) {
    BlockScales block;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      block.scale[v] = weights.numbers(v, 0);
      block.minimum[v] = kStored.minimum ? weights.numbers(v, 1) : block.scale[v];
    }
    const __m512i offset = _mm512_set1_epi8(static_cast<char>(kStored.offset));
#pragma GCC unroll 8
    for (int line = 0; line < Weights::kLines; ++line) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        __m512i units[Weights::kParts];
        weights.unpack(v, line, units);
#pragma GCC unroll 2
        for (int part = 0; part < Weights::kParts; ++part) {
          _mm512_store_si512(
              codes + v * kVectorBytes + (line * Weights::kParts + part) * kTileRowBytes,
              _mm512_sub_epi8(units[part], offset));
        }
      }
    }
    weights.advance();
    return block;
  }

  // Sums of a block, and their scales.
  struct Sums {
    const std::byte* sums;     // [kParts][16][16]
    const std::byte* numbers;  // behind the codes of the first row; null: there is no block
    BlockScales scales;
  };

  // Scales part kPart of the sums and adds it to the totals.
  template <int kPart>
  TESSERA_INLINE static void add_up(const Sums& block, int64_t stride, float* totals) {
    constexpr int kVector = kPart % kVectors;
    const std::byte* numbers = block.numbers + kPart / kVectors * kTileRows * stride;
    const std::byte* sums = block.sums + kPart * kPartBytes;
    float* own = totals + kPart * kPartBytes / 4;
    // Keeps GCC from computing the addresses of all rows first, which it would spill.
    asm volatile("" : "+r"(stride));
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row, numbers += stride) {
      if constexpr (kVector == 0) {
        Simd512::prefetch(numbers + 2 * kBytesPerLine);  // later codes of the row, for a tile load
      }
      const __m512 in_scale = Simd512::to_bits(Simd512::broadcast_unit(numbers));
      const __m512i sum = Simd512::load_units(sums + row * kTileRowBytes);
      const __m512 scaled = Simd512::multiply(Simd512::to_floats(sum), block.scales.scale[kVector]);
      __m512 total =
          Simd512::multiply_add(scaled, in_scale, _mm512_load_ps(own + row * Simd512::kLanes));
      if constexpr (kStored.minimum) {
        const __m512 in_sum = Simd512::to_bits(Simd512::broadcast_unit(numbers + 4));
        total = Simd512::multiply_add(block.scales.minimum[kVector], in_sum, total);
      }
      _mm512_store_ps(own + row * Simd512::kLanes, total);
    }
  }

  // Multiplies part kPart of a block. Adds up that part of the block before, if there is one.
  template <int kPart>
  TESSERA_INLINE static void multiply(std::byte* sums, const Sums& before, int64_t stride,
                                      float* totals) {
    clear<kPart>();
    multiply_add_bytes<kPart, kActivations + kPart / kVectors, kWeights + kPart % kVectors>();
    if (before.numbers != nullptr) {
      add_up<kPart>(before, stride, totals);
    }
    store<kPart>(sums + kPart * kPartBytes, kTileRowBytes);
  }

  [[gnu::noinline]] static void run(const LinearTile& tile, int rows) {
    Scratch scratch;
    begin_totals(tile, rows, scratch.totals);
    const int64_t stride = tile.activation_stride;
    const int64_t blocks = tile.units * 4 / kStored.block;
    Weights weights(tile, tile.first_unit * 4 / kStored.block);
    const std::byte* activations = weights.rows.unit(0);
    const std::byte* ahead_end = weights.fetch.ahead;
    Sums before{nullptr, nullptr, {}};
    BlockScales scales = take(weights, scratch.codes[0]);
    for (int64_t i = 0; i < blocks; ++i) {
      load<kActivations>(activations, stride);
      load<kWeights>(scratch.codes[i % 2], kTileRowBytes);
      load<kWeights + 1>(scratch.codes[i % 2] + kVectorBytes, kTileRowBytes);
      BlockScales next = scales;
      if (i + 1 < blocks) {
        next = take(weights, scratch.codes[(i + 1) % 2]);
      }
      std::byte* const sums = scratch.sums[i % 2];
      multiply<0>(sums, before, stride, scratch.totals);
      load<kActivations + 1>(activations + kTileRows * stride, stride);
      multiply<1>(sums, before, stride, scratch.totals);
      multiply<2>(sums, before, stride, scratch.totals);
      multiply<3>(sums, before, stride, scratch.totals);
      before = {sums, activations + Weights::kRowCodes, scales};
      scales = next;
      activations += Weights::kRowBytes;
      ahead_end += kStored.block / 4 * tile.ahead_step;
      for (; weights.fetch.ahead < ahead_end; weights.fetch.ahead += kBytesPerLine) {
        Simd512::prefetch(weights.fetch.ahead);
      }
    }
    for_each<kParts>([&]<int kPart>() { add_up<kPart>(before, stride, scratch.totals); });
    end_totals(tile, rows, scratch.totals);
  }

  // Returns: totals of a row and a vector of outputs, in the scratch.
  static int64_t total_at(int row, int v) {
    return ((row / kTileRows * kVectors + v) * kTileRows + row % kTileRows) * Simd512::kLanes;
  }

  // Totals are passed from stretch to stretch in `partial`.
  static void begin_totals(const LinearTile& tile, int rows, float* totals) {
    for (int row = 0; row < rows; ++row) {
      for (int v = 0; v < kVectors; ++v) {
        _mm512_store_ps(totals + total_at(row, v),
                        tile.begins ? _mm512_setzero_ps()
                                    : Simd512::to_bits(Simd512::load_units(
                                          partial_at<Simd512, kVectors>(tile, row, v))));
      }
      if (tile.ends) {
        fetch_outputs<Simd512, 1, kVectors>(row_of(tile, row));
      }
    }
  }
  static void end_totals(const LinearTile& tile, int rows, const float* totals) {
    for (int row = 0; row < rows; ++row) {
      __m512 values[1][kVectors];
      for (int v = 0; v < kVectors; ++v) {
        values[0][v] = _mm512_load_ps(totals + total_at(row, v));
        if (!tile.ends) {
          _mm512_storeu_ps(partial_at<Simd512, kVectors>(tile, row, v), values[0][v]);
        }
      }
      if (!tile.ends) {
        continue;
      }
      if constexpr (kStored.row_scale) {
        scale_rows<Simd512, 1, kVectors>(tile, values);
      }
      write<Simd512, 1, kVectors>(row_of(tile, row), values);
    }
  }
  static LinearTile row_of(const LinearTile& tile, int row) {
    LinearTile own = tile;
    own.out += row * tile.out_stride;
    return own;
  }
};

// A tile takes as long for few rows as for 32, so those at the end of a block of rows use vectors.
inline constexpr int kLeastRows = 24;

inline void multiply_by_vectors(const TileKernels& vectors, LinearTile tile, int64_t rows) {
  for (; rows > 0; rows -= vectors.max_rows) {
    vectors.by_rows[std::min(rows, vectors.max_rows) - 1](tile);
    tile.activations += vectors.max_rows * tile.activation_stride;
    tile.partial += vectors.max_rows * vectors.slice;
    tile.out += vectors.max_rows * tile.out_stride;
    tile.ahead_step = 0;  // the first ones have prefetched all
  }
}

template <WeightFormat kFormat>
struct BlockTiles {
  static constexpr int kMaxRows = 2 * kTileRows;
  static constexpr const TileKernels& kVectors =
      avx512::kLinearKernels.formats[static_cast<int>(kFormat)].tall;

  template <int kRows>
  static void multiply(const LinearTile& tile) {
    if (kRows < kLeastRows) {
      multiply_by_vectors(kVectors, tile, kRows);
    } else {
      BlockProduct<kFormat>::run(tile, kRows);
    }
  }
  static void begin() { _tile_loadconfig(&kBlockConfig<encoding(kFormat).block>); }
};

template <WeightFormat kFormat>
constexpr TileKernels kBlockTiles{
    32, BlockTiles<kFormat>::kMaxRows,
    TileTable<BlockTiles<kFormat>, BlockTiles<kFormat>::kMaxRows>::kByRows,
    BlockTiles<kFormat>::begin, release_tiles};

}  // namespace
}  // namespace tessera::amx
