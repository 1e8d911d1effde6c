#include "kernels/cpu/rows/row_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/rows/layer_ops.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

// Floats in a range: a few microseconds of work, more than the handover to a thread takes.
constexpr int64_t kGrainFloats = 4096;

int64_t rows_per_range(int64_t cols) {
  return std::max<int64_t>(1, kGrainFloats / cols);
}

void check_not_rounded(const RoundedRows& rounded) {
  TESSERA_CHECK(rounded.format == WeightFormat::f32, "the CPU rounds no rows ahead of a product");
}

void rms_norm_rows(const RowOps& ops, const RmsNormArgs& args, Stream stream) {
  const int64_t cols = args.in.cols;
  TESSERA_CHECK(args.out.rows == args.in.rows && args.out.cols == cols, "rms_norm: out's shape");
  const auto width = static_cast<int64_t>(args.weight.size());
  TESSERA_CHECK(width > 0 && cols % width == 0, "rms_norm: weight's length");
  check_not_rounded(args.rounded);
  TESSERA_CHECK(!args.accumulate || args.in.data != args.out.data, "rms_norm: adds to its input");
  ThreadPool::of(stream).parallel_for(
      args.in.rows, rows_per_range(cols), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          const float* in = args.in.row(row).data();
          float* out = args.out.row(row).data();
          for (int64_t first = 0; first < cols; first += width) {
            ops.rms_norm(
                {in + first, args.weight.data(), width, args.epsilon, args.scale, args.accumulate},
                out + first);
          }
        }
      });
}

void rope_rows(const RowOps& ops, const RopeArgs& args, Stream stream) {
  const int64_t half = args.rotary_dim / 2;
  TESSERA_CHECK(args.heads.cols % args.head_dim == 0, "rope: rows are not whole heads");
  TESSERA_CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim > 0 && args.rotary_dim <= args.head_dim,
                "rope: elements of a head");
  TESSERA_CHECK(static_cast<int64_t>(args.positions.size()) == args.heads.rows,
                "rope: one position a token");
  ThreadPool::of(stream).parallel_for(
      args.heads.rows, rows_per_range(args.heads.cols), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t angle = args.positions[static_cast<size_t>(row)] * half;
          float* heads = args.heads.row(row).data();
          for (int64_t first = 0; first < args.heads.cols; first += args.head_dim) {
            ops.rope(heads + first, args.cos + angle, args.sin + angle, half);
          }
        }
      });
}

// One scalar form serves every instruction set: models that need it are few.
void gelu_mul(const float* gate, const float* up, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = gate[i] * 0.5f * (1 + std::erf(gate[i] * std::numbers::sqrt2_v<float> / 2)) * up[i];
  }
}

void gelu_tanh_mul(const float* gate, const float* up, int64_t count, float* out) {
  const float slope = std::sqrt(2 * std::numbers::inv_pi_v<float>);
  for (int64_t i = 0; i < count; ++i) {
    const float x = gate[i];
    out[i] = x * 0.5f * (1 + std::tanh(slope * (x + 0.044715f * x * x * x))) * up[i];
  }
}

void silu_mul_rows(const RowOps& ops, const SiluMulArgs& args, Stream stream) {
  const int64_t width = args.out.cols;
  TESSERA_CHECK(args.gate_up.rows == args.out.rows && args.gate_up.cols == 2 * width,
                "silu_mul: shapes");
  check_not_rounded(args.rounded);
  ThreadPool::of(stream).parallel_for(args.out.rows, rows_per_range(width),
                                      [&](int64_t begin, int64_t end, int) {
                                        for (int64_t row = begin; row < end; ++row) {
                                          const float* gate = args.gate_up.row(row).data();
                                          float* out = args.out.row(row).data();
                                          switch (args.activation) {
                                            case Activation::silu:
                                              ops.silu_mul(gate, gate + width, width, out);
                                              break;
                                            case Activation::gelu:
                                              gelu_mul(gate, gate + width, width, out);
                                              break;
                                            case Activation::gelu_tanh:
                                              gelu_tanh_mul(gate, gate + width, width, out);
                                              break;
                                          }
                                        }
                                      });
}

void scale(std::span<float> row, float factor) {
  if (factor == 1) return;
  for (float& value : row) {
    value *= factor;
  }
}

// The table that the arguments give.
class EmbedTable {
 public:
  explicit EmbedTable(const EmbedArgs& args) : args_(args) {}

  int64_t vocab() const {
    return args_.packed != nullptr           ? args_.packed->rows
           : args_.table_f32.data != nullptr ? args_.table_f32.rows
                                             : args_.table.rows;
  }
  int64_t hidden() const {
    return args_.packed != nullptr           ? args_.packed->cols
           : args_.table_f32.data != nullptr ? args_.table_f32.cols
                                             : args_.table.cols;
  }
  void look_up(int64_t token, float* out) const {
    if (args_.packed != nullptr) {
      look_up_row(*args_.packed, token, out);
    } else if (args_.table_f32.data != nullptr) {
      std::copy_n(args_.table_f32.row(token).data(), hidden(), out);
    } else {
      std::ranges::transform(args_.table.row(token), out, [](bf16 value) { return to_f32(value); });
    }
  }

 private:
  const EmbedArgs& args_;
};

}  // namespace

namespace scalar {

void embed(const EmbedArgs& args, Stream stream) {
  const EmbedTable table(args);
  TESSERA_CHECK(static_cast<int64_t>(args.tokens.size()) == args.out.rows, "embed: rows of out");
  TESSERA_CHECK(table.hidden() == args.out.cols, "embed: columns of out");
  ThreadPool::of(stream).parallel_for(
      args.out.rows, rows_per_range(args.out.cols), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          const int32_t token = args.tokens[static_cast<size_t>(row)];
          TESSERA_CHECK(token >= 0 && token < table.vocab(), "embed: a token that does not exist");
          table.look_up(token, args.out.row(row).data());
          scale(args.out.row(row), args.scale);
        }
      });
}

void rms_norm(const RmsNormArgs& args, Stream stream) {
  rms_norm_rows(kRowOps, args, stream);
}
void rope(const RopeArgs& args, Stream stream) {
  rope_rows(kRowOps, args, stream);
}
void silu_mul(const SiluMulArgs& args, Stream stream) {
  silu_mul_rows(kRowOps, args, stream);
}

}  // namespace scalar

namespace avx2 {

void rms_norm(const RmsNormArgs& args, Stream stream) {
  rms_norm_rows(kRowOps, args, stream);
}
void rope(const RopeArgs& args, Stream stream) {
  rope_rows(kRowOps, args, stream);
}
void silu_mul(const SiluMulArgs& args, Stream stream) {
  silu_mul_rows(kRowOps, args, stream);
}

}  // namespace avx2

namespace avx512 {

void rms_norm(const RmsNormArgs& args, Stream stream) {
  rms_norm_rows(kRowOps, args, stream);
}
void rope(const RopeArgs& args, Stream stream) {
  rope_rows(kRowOps, args, stream);
}
void silu_mul(const SiluMulArgs& args, Stream stream) {
  silu_mul_rows(kRowOps, args, stream);
}

}  // namespace avx512

}  // namespace tessera
