#include "kernels/check.h"
#include "kernels/cuda/ops.h"
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

TESSERA_KERNEL(kRowThreads)
rms_norm_kernel(MatrixView<const float> in, const float* weight, int64_t width, float epsilon,
                float scale, MatrixView<float> out) {
  const float* from = in.data + block_x() * in.stride + block_y() * width;
  float* to = out.data + block_x() * out.stride + block_y() * width;
  float squares = 0;
  for (int64_t i = thread(); i < width; i += kRowThreads) {
    squares = fma(from[i], from[i], squares);
  }
  const float sum = block_sum(squares, shared<OfWarps<float>>());
  const float inverse = scale / sqrt(sum / static_cast<float>(width) + epsilon);
  for (int64_t i = thread(); i < width; i += kRowThreads) {
    to[i] = from[i] * inverse * weight[i];
  }
}

TESSERA_KERNEL(kRowThreads)
rope_kernel(MatrixView<float> heads, const int32_t* positions, const float* cos, const float* sin,
            int32_t head_dim, int32_t rotary_dim) {
  const int32_t half = rotary_dim / 2;
  const int64_t angles = int64_t{positions[block_x()]} * half;
  float* row = heads.data + block_x() * heads.stride;
  for (int64_t i = thread(); i < heads.cols / head_dim * half; i += kRowThreads) {
    float* x = row + i / half * head_dim + i % half;
    float* y = x + half;
    const float c = cos[angles + i % half];
    const float s = sin[angles + i % half];
    const float before = *x;
    *x = fma(before, c, -*y * s);
    *y = fma(before, s, *y * c);
  }
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

TESSERA_KERNEL(kRowThreads)
silu_mul_kernel(MatrixView<const float> gate_up, MatrixView<float> out, Activation activation) {
  const float* gate = gate_up.data + block_x() * gate_up.stride;
  for (int64_t i = block_y() * kRowThreads + thread(); i < out.cols; i += grid_y() * kRowThreads) {
    out.data[block_x() * out.stride + i] = activated(gate[i], activation) * gate[out.cols + i];
  }
}

LaunchShape row_per_block(int64_t rows) {
  return {.grid_x = static_cast<int32_t>(rows), .threads = kRowThreads};
}

}  // namespace

void embed(const EmbedArgs& args, Stream stream) {
  TESSERA_CHECK(args.packed == nullptr, "embed: CUDA looks up no packed weight");
  launch(stream, row_per_block(args.out.rows), embed_kernel, mirror(args.tokens, stream), args);
}

void rms_norm(const RmsNormArgs& args, Stream stream) {
  const auto width = static_cast<int64_t>(args.weight.size());
  LaunchShape shape = row_per_block(args.in.rows);
  shape.grid_y = static_cast<int32_t>(args.in.cols / width);
  shape.shared_bytes = sizeof(OfWarps<float>);
  launch(stream, shape, rms_norm_kernel, args.in, args.weight.data(), width, args.epsilon,
         args.scale, args.out);
}

void rope(const RopeArgs& args, Stream stream) {
  launch(stream, row_per_block(args.heads.rows), rope_kernel, args.heads,
         mirror(args.positions, stream), args.cos, args.sin, args.head_dim, args.rotary_dim);
}

void silu_mul(const SiluMulArgs& args, Stream stream) {
  LaunchShape shape = row_per_block(args.out.rows);
  // A row is divided over several blocks, so that few rows still occupy every multiprocessor.
  constexpr int64_t kColumns = 4 * kRowThreads;
  shape.grid_y = static_cast<int32_t>(div_ceil(args.out.cols, kColumns));
  launch(stream, shape, silu_mul_kernel, args.gate_up, args.out, args.activation);
}

}  // namespace tessera::cuda
