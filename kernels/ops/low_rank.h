#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "kernels/device/stream.h"
#include "kernels/matrix/view.h"
#include "kernels/matrix/weight.h"

namespace tessera {

// The op of adapters (LoRA, arXiv 2106.09685): some rows of a product change by B (A x), where A
// and B are the small matrices of the row's adapter. One call serves all adapters of a step,
// because a product of each alone is too small to be shared by threads.

// A narrows a row to the ranks, B widens ranks to outputs. Their layouts differ.
enum class LowRankSide : uint8_t { narrows, widens };

// A matrix of an adapter in the layout of its backend. Written only by Backend::pack_low_rank, read
// only by Backend::low_rank. Does not own its memory.
struct LowRankMatrix {
  LowRankSide side = LowRankSide::narrows;
  WeightFormat format = WeightFormat::f32;  // or bf16; activations and sums are f32 beside both
  int64_t rows = 0;                         // outputs
  int64_t cols = 0;                         // inputs
  std::byte* data = nullptr;                // Backend::low_rank_bytes(matrix) bytes
};

// What an adapter adds to one product of a layer: B (A x) for each part of it that it changes. The
// parts of a product share their input, so all A are one matrix.
struct LowRankProduct {
  static constexpr int32_t kMaxParts = StackedWeight::kMaxParts;

  struct Part {
    LowRankMatrix up;          // [outputs, rank], B
    int64_t first_output = 0;  // of the layer's product
    int64_t first_rank = 0;    // of the rows of `down`
  };

  LowRankMatrix down;  // [ranks, inputs], all A; no rows: the adapter leaves the product alone
  std::array<Part, kMaxParts> parts;  // of distinct outputs
  int32_t count = 0;

  void add(const Part& part) {
    TESSERA_CHECK(count < kMaxParts, "an adapter of too many parts");
    parts[static_cast<size_t>(count++)] = part;
  }
  std::span<const Part> all() const { return std::span(parts).first(static_cast<size_t>(count)); }
};

// Consecutive rows of a step that have one adapter.
struct LowRankRows {
  const LowRankProduct* product = nullptr;  // not owned
  int32_t first_row = 0;
  int32_t count = 0;
  int32_t first_low = 0;  // place of their ranks in `low`
};

// out += B (A in) for the rows named. Batch-invariant like LinearArgs: a row's result depends
// neither on the other rows nor on their adapters.
struct LowRankArgs {
  MatrixView<const float> in;         // [tokens, inputs]
  std::span<const LowRankRows> rows;  // of distinct rows
  MatrixView<float> low;              // scratch: [rows, ranks of the widest product]
  MatrixView<float> out;              // [tokens, outputs]
};

}  // namespace tessera
