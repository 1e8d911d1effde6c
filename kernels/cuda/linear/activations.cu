#include "base/check.h"
#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/linear/rounding.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kRowThreads = 256;

template <WeightFormat kFormat>
TESSERA_KERNEL(kRowThreads)
round_kernel(MatrixView<const float> in, ActivationRows out) {
  const float* row = in.data + block_x() * in.stride;
  put_columns<kFormat>(
      out, {thread(), in.cols, kRowThreads}, [row](int64_t i) { return row[i]; },
      shared<OfWarps<int32_t>>());
}

TESSERA_KERNEL(kRowThreads) add_bias_kernel(MatrixView<float> out, const float* bias) {
  float* row = out.data + block_x() * out.stride;
  for (int64_t i = thread(); i < out.cols; i += kRowThreads) {
    row[i] += bias[i];
  }
}

LaunchShape block_per_row(int64_t rows, int32_t shared_bytes) {
  return {
      .grid_x = static_cast<int32_t>(rows), .threads = kRowThreads, .shared_bytes = shared_bytes};
}

}  // namespace

ActivationRows rounded_rows(std::span<std::byte> scratch, int64_t tokens, int64_t cols) {
  TESSERA_CHECK(rounded_bytes(tokens, cols) <= std::ssize(scratch),
                "rounded activations: scratch is too small");
  const auto start = reinterpret_cast<uintptr_t>(scratch.data());
  std::byte* scales = scratch.data() + (kScratchAlign - start % kScratchAlign) % kScratchAlign;
  return {scales + round_up(tokens * 4, kScratchAlign), cols, reinterpret_cast<float*>(scales)};
}

std::byte* scratch_behind_rows(std::span<std::byte> scratch, int64_t tokens, int64_t cols) {
  return static_cast<std::byte*>(rounded_rows(scratch, tokens, cols).rows) +
         round_up(tokens * cols * 2, kScratchAlign);
}

void round_rows(WeightFormat format, MatrixView<const float> in, const ActivationRows& out,
                Stream stream) {
  TESSERA_CHECK(rounds(format), "activations of a format that is not rounded to");
  as_constant(format, [&](auto constant) {
    constexpr WeightFormat kFormat = decltype(constant)::value;
    if constexpr (rounds(kFormat)) {
      launch(stream, block_per_row(in.rows, sizeof(OfWarps<int32_t>)), round_kernel<kFormat>, in,
             out);
    }
  });
}

Activations activations_of(const LinearArgs& args, Stream stream) {
  const WeightFormat format = args.weight->format;
  TESSERA_CHECK(!args.rounded || rounds(format), "linear: rounded rows for weights without any");
  if (!rounds(format)) {
    return {args.in.data, args.in.stride, nullptr};
  }
  const ActivationRows rows = rounded_rows(args.scratch, args.in.rows, args.in.cols);
  if (!args.rounded) {
    round_rows(format, args.in, rows, stream);
  }
  return {rows.rows, rows.stride, rows.scales};
}

void add_bias(MatrixView<float> out, const float* bias, Stream stream) {
  launch(stream, block_per_row(out.rows, 0), add_bias_kernel, out, bias);
}

}  // namespace tessera::cuda
