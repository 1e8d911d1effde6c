#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device/stream.h"
#include "kernels/matrix/view.h"
#include "kernels/matrix/weight.h"

namespace tessera {

// Ops of a mixture of experts (Mixtral of Experts, arXiv 2401.04088, section 2.1). A router chooses
// some experts for each token. Rows are grouped by expert, so that each expert's weights are read
// once in a step. A rank has experts [first_expert, first_expert + own experts).

// The rows of a step by expert: experts ascend, and tokens ascend within an expert. In the
// backend's memory, not owned.
struct ExpertRows {
  std::span<int32_t> offsets;  // [own experts + 1]: the first row of each expert, then the end
  std::span<int32_t> tokens;   // [tokens * chosen]: the token of each row; 0 beyond the end
  std::span<int32_t> places;   // [tokens * chosen]: rows of each token, by expert; -1: another rank
  std::span<float> weights;    // [tokens * chosen]: likewise
};

// Chooses each token's experts: those of the largest logits, the first of equal ones. A weight is
// the expert's share of the softmax over all logits.
struct RouteArgs {
  MatrixView<const float> logits;  // [tokens, experts of all ranks]
  int32_t chosen = 0;              // experts of each token
  bool normalise = false;          // a token's weights sum to 1
  int32_t first_expert = 0;
  ExpertRows rows;  // written
};

// Multiplies each expert's rows by its weight. A row's result does not depend on the other rows.
struct ExpertLinearArgs {
  MatrixView<const float> in;              // [rows, cols of each weight]
  std::span<const int32_t> offsets;        // as in ExpertRows
  std::span<const StackedWeight> weights;  // [own experts]
  MatrixView<float> out;                   // [rows, rows of each weight]
  std::span<std::byte> scratch;            // Backend::linear_scratch_bytes(rows, cols)
};

// Adds the weighted rows of each token, by ascending expert, and then those of an expert that
// serves every token.
struct CombineArgs {
  MatrixView<const float> in;       // [rows, hidden]
  std::span<const int32_t> places;  // as in ExpertRows
  std::span<const float> weights;   // as in ExpertRows
  int32_t chosen = 0;
  MatrixView<const float> shared = {};  // [tokens, hidden] of that expert; without data: none
  // [tokens, 1]: the sigmoid of each is its token's weight; without data: all weights are 1.
  MatrixView<const float> shared_gates = {};
  bool accumulate = false;  // adds to `out`, else writes it
  MatrixView<float> out;    // [tokens, hidden]
};

}  // namespace tessera
