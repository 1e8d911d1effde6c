#include "kernels/cpu/linear/linear.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/check.h"
#include "kernels/cpu/linear/kernels.h"
#include "kernels/cpu/linear/panel.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

constexpr int64_t kGrainBytes = 32768;   // weights or activations: about a microsecond of work
constexpr int64_t kRowBlock = 192;       // rows that use a stretch of weights while it is in L2
constexpr int64_t kStretchUnits = 512;   // units of a stretch: 64 KiB of weights, 384 of rows
constexpr int64_t kAheadBytes = 8192;    // prefetch distance of a single tile
constexpr int64_t kStripsAtOnce = 4;     // so that the prefetched weights come next
constexpr int64_t kMaxSlice = 32;        // outputs of a strip with several stretches
constexpr int64_t kOrderedInputs = 512;  // inputs that are put in order at once, whole blocks

const TileKernels& tiles_for(const FormatKernels& kernels, int64_t rows, int64_t inputs) {
  if (rows <= kernels.wide.max_rows) {
    return kernels.wide;
  }
  const bool large = kernels.large.by_rows != nullptr && rows >= kernels.large_rows &&
                     inputs >= kernels.large_inputs;
  return large ? kernels.large : kernels.tall;
}

// One call of `linear`: converts the activations, then multiplies slices of outputs by blocks of
// rows.
class Product {
 public:
  Product(const LinearArgs& args, const LinearKernels& kernels)
      : args_(args),
        panels_{args.weight->format, args.weight->rows, args.weight->cols},
        places_(args.weight->format),
        panel_bytes_(panels_.panel_bytes()),
        kernels_(kernels.formats[static_cast<size_t>(args.weight->format)]),
        layout_{args.weight->format, args.in.rows, args.in.cols, kernels_.input_bytes},
        units_(layout_.units()),
        tiles_(tiles_for(kernels_, args.in.rows, args.in.cols)) {
    TESSERA_CHECK(args.in.cols == panels_.cols && args.out.cols == panels_.rows, "shapes differ");
    TESSERA_CHECK(args.out.rows == args.in.rows, "as many outputs as inputs");
    TESSERA_CHECK(!args.rounded, "the CPU rounds no rows ahead of a product");
    TESSERA_CHECK(static_cast<int64_t>(args.scratch.size()) >= layout_.bytes(), "small scratch");
  }

  void run(ThreadPool& pool) const {
    if (args_.in.rows == 0) {
      return;
    }
    const int64_t rows = args_.in.rows;
    const int64_t grain = std::max<int64_t>(1, kGrainBytes / (layout_.cols * 4 + 1));
    pool.parallel_for(rows, grain, [this](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        convert(row);
      }
    });
    const int64_t blocks = div_ceil(rows, kRowBlock);
    const int64_t strips = div_ceil(panels_.rows, strip());
    pool.parallel_for(blocks * strips, strips_at_once(blocks * strips, pool.threads()),
                      [&](int64_t begin, int64_t end, int) {
                        if (tiles_.begin != nullptr) {
                          tiles_.begin();
                        }
                        for (int64_t item = begin; item < end; ++item) {
                          multiply(item / strips, blocks, item % strips);
                        }
                        if (tiles_.end != nullptr) {
                          tiles_.end();
                        }
                      });
  }

 private:
  std::byte* scratch(int64_t offset) const { return args_.scratch.data() + offset; }
  float* scales(int64_t row) const {
    return reinterpret_cast<float*>(scratch(layout_.scales_offset())) + row * layout_.row_scales();
  }

  void convert(int64_t row) const {
    if (args_.weight->input_order != nullptr) {
      return convert_in_order(row);
    }
    kernels_.convert({.in = args_.in.row(row).data(),
                      .cols = layout_.cols,
                      .out = scratch(row * layout_.stride()),
                      .out_bytes = layout_.row_bytes(),
                      .scale = scales(row)});
  }

  // Blocks are converted alone, so parts of a row can be.
  void convert_in_order(int64_t row) const {
    std::array<float, kOrderedInputs> ordered;
    const std::span<const float> in = args_.in.row(row);
    const int64_t block = places_.stored.block;
    TESSERA_CHECK(block > 0 && kOrderedInputs % block == 0, "an order of inputs without blocks");
    const int64_t block_bytes = layout_.row_bytes() / places_.stored.blocks(layout_.cols);
    for (int64_t first = 0; first < layout_.cols; first += kOrderedInputs) {
      const int64_t inputs = std::min(kOrderedInputs, layout_.cols - first);
      for (int64_t i = 0; i < inputs; ++i) {
        ordered[static_cast<size_t>(i)] =
            in[static_cast<size_t>(args_.weight->input_order[first + i])];
      }
      kernels_.convert({.in = ordered.data(),
                        .cols = inputs,
                        .out = scratch(row * layout_.stride() + first / block * block_bytes),
                        .out_bytes = div_ceil(inputs, block) * block_bytes});
    }
  }

  // Returns: outputs that a thread multiplies together, whole panels. Narrower slices of a panel
  // take turns in each stretch, so that all of them share the prefetches of the next one.
  int64_t strip() const { return std::max(tiles_.slice, kPanelRows); }

  // Returns: number of strips that a thread claims at once. It makes a claim worth its cost. With
  // many items it is larger, so that the prefetched weights are the next ones.
  int64_t strips_at_once(int64_t items, int threads) const {
    const int64_t strip_bytes = panel_bytes_ * strip() / kPanelRows;
    const int64_t work = strip_bytes * div_ceil(std::min(args_.in.rows, kRowBlock), 8);
    const int64_t worthwhile = kGrainBytes / (work + 1);
    return std::max({int64_t{1}, worthwhile, std::min(kStripsAtOnce, items / (4 * threads))});
  }

  // Multiplies a block of rows by a strip of outputs.
  void multiply(int64_t block, int64_t blocks, int64_t strip_index) const {
    alignas(64) float partial[kRowBlock * kMaxSlice];
    const int64_t begin = args_.in.rows * block / blocks;
    const int64_t count = args_.in.rows * (block + 1) / blocks - begin;
    const int64_t first = strip_index * strip();
    const int64_t slices = div_ceil(std::min(strip(), panels_.rows - first), tiles_.slice);
    const int64_t tiles = div_ceil(count, tiles_.max_rows) * slices;
    const int64_t stretch = tiles > 1 ? kStretchUnits : units_;
    const int64_t unit_bytes = panel_bytes_ / units_;
    for (int64_t unit = 0; unit < units_; unit += stretch) {
      const int64_t units = std::min(stretch, units_ - unit);
      // Stretches are adjacent in memory, and so are strips. A single tile prefetches a little
      // ahead of itself. Several tiles divide the next stretch between them.
      const std::byte* ahead = args_.weight->data + first / kPanelRows * panel_bytes_ +
                               unit * unit_bytes + (tiles == 1 ? kAheadBytes : units * unit_bytes);
      for (int64_t slice = 0; slice < slices; ++slice) {
        LinearTile described = describe(first + slice * tiles_.slice);
        take_units(unit, units, described);
        described.begins = unit == 0;
        described.ends = unit + stretch >= units_;
        described.ahead = ahead;
        described.ahead_step = unit_bytes / tiles;
        described.partial = partial + slice * count * tiles_.slice;
        multiply_rows(begin, count, first + slice * tiles_.slice, described);
        ahead = described.ahead;
      }
    }
  }

  // Multiplies rows by a slice over a stretch. Rows are cut as evenly as possible, so that no tile
  // is left with few rows.
  void multiply_rows(int64_t begin, int64_t count, int64_t output, LinearTile& described) const {
    const int64_t tiles = div_ceil(count, tiles_.max_rows);
    int64_t row = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t rows = count / tiles + (tile < count % tiles ? 1 : 0);
      take_rows(begin + row, output, described);
      tiles_.by_rows[rows - 1](described);
      described.ahead += described.units * described.ahead_step;
      described.partial += rows * tiles_.slice;
      row += rows;
    }
  }

  // Returns: the fields that all tiles of a slice have in common.
  LinearTile describe(int64_t output) const {
    LinearTile tile;
    tile.activation_stride = layout_.stride();
    tile.panel = args_.weight->data + output / kPanelRows * panel_bytes_;
    tile.panel_bytes = panel_bytes_;
    tile.first_output = output % kPanelRows;
    tile.outputs = std::min(tiles_.slice, panels_.rows - output);
    tile.bias = args_.bias.empty() ? nullptr : args_.bias.data() + output;
    tile.accumulate = args_.accumulate;
    tile.out_stride = args_.out.stride;
    return tile;
  }

  void take_units(int64_t first, int64_t units, LinearTile& tile) const {
    tile.first_unit = first;
    tile.units = units;
    if (places_.stored.is_coded()) {
      const int64_t block = first * 4 / places_.stored.block;
      tile.first_byte = places_.block_at(block);
      tile.scale_before = places_.before(block);
      tile.scale_bytes = places_.blocks_of_a_scale() * places_.block_bytes();
    } else if (is_fp8(panels_.format)) {
      tile.first_byte = panels_.fp8_units_at(first * 2);
    }
  }

  void take_rows(int64_t row, int64_t output, LinearTile& tile) const {
    tile.activations = scratch(row * tile.activation_stride);
    tile.scales = scales(row);
    tile.scale_stride = layout_.row_scales();
    tile.out = args_.out.data + row * args_.out.stride + output;
  }

  const LinearArgs& args_;
  PanelLayout panels_;
  CodedPanel places_;  // integers only, but for `stored`
  int64_t panel_bytes_;
  const FormatKernels& kernels_;
  ActivationLayout layout_;
  int64_t units_;
  const TileKernels& tiles_;
};

}  // namespace

namespace avx2 {
void linear(const LinearArgs& args, Stream stream) {
  Product(args, kLinearKernels).run(ThreadPool::of(stream));
}
}  // namespace avx2

namespace avx512 {
void linear(const LinearArgs& args, Stream stream) {
  Product(args, kLinearKernels).run(ThreadPool::of(stream));
}
}  // namespace avx512

namespace amx {
void linear(const LinearArgs& args, Stream stream) {
  static const LinearKernels kKernels = linear_kernels();
  Product(args, kKernels).run(ThreadPool::of(stream));
}
}  // namespace amx

}  // namespace tessera
