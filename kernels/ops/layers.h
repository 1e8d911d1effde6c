#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device/stream.h"
#include "kernels/matrix/half.h"
#include "kernels/matrix/view.h"
#include "kernels/matrix/weight.h"
#include "kernels/ops/sampling.h"

namespace tessera {

// Ops of the model's layers, and the choice of tokens from logits. Each row is computed on its own.

// One of the three tables is given.
struct EmbedArgs {
  std::span<const int32_t> tokens;         // [tokens], each in [0, vocab)
  MatrixView<const bf16> table = {};       // [vocab, hidden]
  MatrixView<const float> table_f32 = {};  // [vocab, hidden]
  const PackedWeight* packed = nullptr;    // [vocab, hidden]; needs Backend::looks_up
  float scale = 1;                         // of every element
  MatrixView<float> out;                   // [tokens, hidden]
};

// Rows for products alone, which are written as these read them: rounded to the format that weights
// of `format` are multiplied in (kernels/matrix/weight.h), bit for bit as `linear` rounds f32 rows.
// So the products need not round, and nothing is written in f32. The places are the backend's.
// Requires: Backend::rounds_ahead(format). The products follow, with LinearArgs::rounded, before
// anything else uses the scratch.
struct RoundedRows {
  WeightFormat format = WeightFormat::f32;  // f32: not rounded, the op writes its `out`
  std::span<std::byte> scratch;             // LinearArgs::scratch of the products
};

// Divides by the root mean square, times the weight. One mean is taken over each `width` elements,
// where width = weight.size(). That is a whole row in a layer's norm, and a head in a q/k norm.
struct RmsNormArgs {
  MatrixView<const float> in;     // [tokens, n * width]
  std::span<const float> weight;  // [width]
  float epsilon = 1e-5f;
  float scale = 1;           // of every norm
  bool accumulate = false;   // adds to `out`, which is not `in`: the residual add of a block's norm
  MatrixView<float> out;     // [tokens, n * width]; may alias `in`
  RoundedRows rounded = {};  // in the place of `out`, which nothing is added to; n is 1 then
};

// out = in * weight^T (+ bias) (+ out if `accumulate`). Batch-invariant: a batch row's result does
// not depend on the number of rows, because the sum over inputs has one fixed order per ISA.
// Deterministic serving depends on this.
struct LinearArgs {
  MatrixView<const float> in;  // [tokens, weight.cols]
  const PackedWeight* weight = nullptr;
  std::span<const float> bias;   // [weight.rows] or empty
  bool accumulate = false;       // adds to `out`: fuses the residual add
  MatrixView<float> out;         // [tokens, weight.rows]
  std::span<std::byte> scratch;  // for activations: Backend::linear_scratch_bytes(tokens, cols)
  // True: `scratch` has the rows as RoundedRows of weight.format. `in` gives their shape alone.
  bool rounded = false;
};

// Rotates q and k in place. The pairs are (i, i + rotary_dim / 2), as in Hugging Face's layout.
struct RopeArgs {
  MatrixView<float> heads;             // [tokens, heads * head_dim]
  std::span<const int32_t> positions;  // [tokens]
  const float* cos = nullptr;          // [max_positions, rotary_dim / 2]
  const float* sin = nullptr;          // [max_positions, rotary_dim / 2]
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;  // the first elements of a head, which are rotated; even, <= head_dim
};

// The function of the gate. gelu is exact (erf), gelu_tanh its approximation by tanh.
enum class Activation : uint8_t { silu, gelu, gelu_tanh };

struct SiluMulArgs {
  MatrixView<const float> gate_up;  // [tokens, 2 * width]: gate, then up
  MatrixView<float> out;            // [tokens, width] = activation(gate) * up
  Activation activation = Activation::silu;
  RoundedRows rounded = {};  // in the place of `out`
};

// Upper bounds for one call of `sample`. Scratch is sized by them once, at start.
struct SampleLimits {
  int32_t rows = 0;
  int32_t vocab = 0;    // <= kMaxSampledVocab
  int32_t changes = 0;  // sum over all rows
  int32_t masks = 0;    // at most one for each row
};

// Chooses the next token of each logits row (kernels/ops/sampling.h). `rows`, `changes` and `masks`
// belong to the step's plan, so they are in host memory; `logits` and `sampled` are in the
// backend's memory.
// Logits are modified during the call and restored. A row's token depends only on that row.
struct SampleArgs {
  MatrixView<float> logits;              // [any, vocab]
  std::span<const SampleRow> rows;       // at most one for each row of `logits`
  std::span<const LogitChange> changes;  // concatenated changes of all rows
  std::span<const uint32_t> masks;       // [masks, mask_words(vocab)]; rows name theirs by index
  std::span<SampledToken> sampled;       // one for each of `rows`
  std::span<std::byte> scratch;          // Backend::sample_scratch_bytes(...), 64-byte aligned
};

}  // namespace tessera
