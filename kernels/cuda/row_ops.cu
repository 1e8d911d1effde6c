#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/linear/rounding.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/pages/rope.h"
#include "kernels/cuda/simt/block.h"
#include "kernels/cuda/simt/simt.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kRowThreads = 256;  // threads of a block, which processes a row or its part

TESSERA_KERNEL(kRowThreads)
embed_kernel(const int32_t* tokens, EmbedArgs args) {
  const int64_t token = tokens[block_x()];
  float* out = args.out.data + block_x() * args.out.stride;
  for (int64_t i = thread(); i < args.out.cols; i += kRowThreads) {
    const float value = args.table.data != nullptr
                            ? as_f32(args.table.data[token * args.table.stride + i])
                            : args.table_f32.data[token * args.table_f32.stride + i];
    out[i] = value * args.scale;
  }
}

// Shared memory of a block that writes rows for products.
struct RowMemory {
  OfWarps<float> squares;
  OfWarps<int32_t> magnitudes;
};

// The norm's scale, epsilon and weight.
struct NormFactors {
  const float* weight;  // [width]
  int64_t width;
  float epsilon;
  float scale;
  const float* added;  // row 0 of the rows that the norms are added to; null: none
  int64_t added_stride;
};

template <WeightFormat kFormat>
TESSERA_KERNEL(kRowThreads)
rms_norm_kernel(MatrixView<const float> in, NormFactors by, ActivationRows out) {
  const float* row = in.data + block_x() * in.stride;
  const int64_t begin = block_y() * by.width;
  const Columns own{begin + thread(), begin + by.width, kRowThreads};
  RowMemory& memory = shared<RowMemory>();
  float squares = 0;
  for (int64_t i = own.first; i < own.end; i += own.step) {
    squares = fma(row[i], row[i], squares);
  }
  const float sum = block_sum(squares, memory.squares);
  const float inverse = by.scale / sqrt(sum / static_cast<float>(by.width) + by.epsilon);
  const float* added = by.added + block_x() * by.added_stride;
  put_columns<kFormat>(
      out, own,
      [&](int64_t i) {
        const float norm = row[i] * inverse * by.weight[i - begin];
        return by.added == nullptr ? norm : added[i] + norm;
      },
      memory.magnitudes);
}

TESSERA_KERNEL(kRowThreads)
rope_kernel(MatrixView<float> heads, const int32_t* positions, const float* cos, const float* sin,
            int32_t head_dim, int32_t rotary_dim) {
  const int32_t half = rotary_dim / 2;
  const int64_t angles = int64_t{positions[block_x()]} * half;
  rotate_heads(heads.data + block_x() * heads.stride, static_cast<int32_t>(heads.cols / head_dim),
               head_dim, {cos + angles, sin + angles, half});
}

TESSERA_DEVICE float activated(float gate, Activation activation) {
  switch (activation) {
    case Activation::silu:
      break;
    case Activation::gelu:
      return gate * 0.5f * (1.0f + erf(gate * 0.70710678f));
    case Activation::gelu_tanh:
      return gate * 0.5f * (1.0f + tanh(0.79788456f * (gate + 0.044715f * gate * gate * gate)));
  }
  return gate / (1.0f + exp(-gate));
}

// An fp8 row has a scale, so one block has the whole row.
template <WeightFormat kFormat>
inline constexpr int32_t kGateThreads = kFormat == WeightFormat::fp8 ? 1024 : kRowThreads;

template <WeightFormat kFormat>
TESSERA_KERNEL(kGateThreads<kFormat>)
silu_mul_kernel(MatrixView<const float> gate_up, ActivationRows out, Activation activation) {
  const float* gate = gate_up.data + block_x() * gate_up.stride;
  const float* up = gate + gate_up.cols / 2;
  put_columns<kFormat>(
      out, {block_y() * threads() + thread(), gate_up.cols / 2, grid_y() * threads()},
      [&](int64_t i) { return activated(gate[i], activation) * up[i]; },
      shared<RowMemory>().magnitudes);
}

LaunchShape row_per_block(int64_t rows) {
  return {.grid_x = static_cast<int32_t>(rows), .threads = kRowThreads};
}

// Returns: destination of rows with `cols` columns.
ActivationRows destination(const RoundedRows& rounded, const MatrixView<float>& out, int64_t rows,
                           int64_t cols) {
  if (rounded.format == WeightFormat::f32) {
    return {out.data, out.stride, nullptr};
  }
  return rounded_rows(rounded.scratch, rows, cols);
}

}  // namespace

void embed(const EmbedArgs& args, Stream stream) {
  TESSERA_CHECK(args.packed == nullptr, "embed: CUDA looks up no packed weight");
  launch(stream, row_per_block(args.out.rows), embed_kernel, mirror(args.tokens, stream), args);
}

void rms_norm(const RmsNormArgs& args, Stream stream) {
  const NormFactors by{args.weight.data(),
                       std::ssize(args.weight),
                       args.epsilon,
                       args.scale,
                       args.accumulate ? args.out.data : nullptr,
                       args.out.stride};
  TESSERA_CHECK(
      args.rounded.format == WeightFormat::f32 || (by.width == args.in.cols && !args.accumulate),
      "rms_norm: norms of heads for a product, or a sum of them");
  LaunchShape shape = row_per_block(args.in.rows);
  shape.grid_y = static_cast<int32_t>(args.in.cols / by.width);
  shape.shared_bytes = sizeof(RowMemory);
  const ActivationRows out = destination(args.rounded, args.out, args.in.rows, args.in.cols);
  as_constant(args.rounded.format, [&](auto constant) {
    launch(stream, shape, rms_norm_kernel<decltype(constant)::value>, args.in, by, out);
  });
}

void rope(const RopeArgs& args, Stream stream) {
  launch(stream, row_per_block(args.heads.rows), rope_kernel, args.heads,
         mirror(args.positions, stream), args.cos, args.sin, args.head_dim, args.rotary_dim);
}

void silu_mul(const SiluMulArgs& args, Stream stream) {
  const int64_t width = args.gate_up.cols / 2;
  const ActivationRows out = destination(args.rounded, args.out, args.gate_up.rows, width);
  as_constant(args.rounded.format, [&](auto constant) {
    constexpr WeightFormat kFormat = decltype(constant)::value;
    LaunchShape shape = row_per_block(args.gate_up.rows);
    shape.shared_bytes = sizeof(RowMemory);
    if (kFormat == WeightFormat::fp8) {
      const int64_t warps = div_ceil(width, kWarp);
      shape.threads = static_cast<int32_t>(std::min<int64_t>(warps * kWarp, kGateThreads<kFormat>));
    } else {
      // A row is divided over several blocks, so that few rows still occupy every multiprocessor.
      constexpr int64_t kColumns = 4 * kRowThreads;
      shape.grid_y = static_cast<int32_t>(div_ceil(width, kColumns));
    }
    launch(stream, shape, silu_mul_kernel<kFormat>, args.gate_up, out, args.activation);
  });
}

}  // namespace tessera::cuda
