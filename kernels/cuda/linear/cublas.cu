#include <cublasLt.h>

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/simt/simt.h"

// Weights as they come, row by row, in bf16 or f32; products by cuBLASLt with sums in f32. The
// activations are rounded to bf16 where the weights are, as the CPU's are.
//
// A row's result must not depend on how many rows there are, and cuBLASLt's heuristics look at that
// number. So for each shape of a weight one algorithm is chosen, once, for kTypicalTokens tokens,
// without a split along the sum, and serves every number of tokens: a tile's sum then has one
// order.

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int64_t kTypicalTokens = 64;  // a decode step's
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int64_t kAlign = 256;
constexpr int32_t kRowThreads = 256;

void check(cublasStatus_t status) {
  TESSERA_CHECK(status == CUBLAS_STATUS_SUCCESS, cublasLtGetStatusString(status));
}

// Destroyed with the call that made them, as cuBLASLt's own objects are plain descriptions.
template <class T, cublasStatus_t (*kDestroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T made) const { kDestroy(made); }
};
template <class T, cublasStatus_t (*kDestroy)(T)>
using Made = std::unique_ptr<T, Destroy<T, kDestroy>>;
using MatmulDesc = Made<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Made<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Made<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

Layout layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t leading) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(cols), leading));
  return Layout(made);
}

// out^T [rows, tokens] = weight [rows, cols] * in^T [cols, tokens], as cuBLAS counts: by columns.
struct Product {
  Product(const LinearArgs& args, int64_t tokens) {
    const bool narrow = args.weight->format == WeightFormat::bf16;
    const cudaDataType_t type = narrow ? CUDA_R_16BF : CUDA_R_32F;
    const int64_t cols = args.weight->cols;
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    desc = MatmulDesc(made);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof(transposed)));
    weight = layout(type, cols, args.weight->rows, cols);
    in = layout(type, cols, tokens, narrow ? cols : args.in.stride);
    out = layout(CUDA_R_32F, args.weight->rows, tokens, args.out.stride);
  }

  MatmulDesc desc;
  Layout weight, in, out;
};

// One handle, and the algorithms chosen so far, for the process's one device.
class Library {
 public:
  Library() { check(cublasLtCreate(&handle_)); }
  cublasLtHandle_t handle() const { return handle_; }

  const cublasLtMatmulAlgo_t& algorithm(const LinearArgs& args) {
    const Key key{args.weight->format, args.weight->rows, args.weight->cols, args.out.stride};
    const auto found = algorithms_.find(key);
    return found != algorithms_.end() ? found->second
                                      : algorithms_.emplace(key, choose(args)).first->second;
  }

 private:
  using Key = std::tuple<WeightFormat, int64_t, int64_t, int64_t>;

  cublasLtMatmulAlgo_t choose(const LinearArgs& args) const {
    const Product product(args, kTypicalTokens);
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made));
    const Preference preference(made);
    const uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE;
    check(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspaceBytes, sizeof(kWorkspaceBytes)));
    check(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                               &no_split, sizeof(no_split)));
    cublasLtMatmulHeuristicResult_t best = {};
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle_, product.desc.get(), product.weight.get(),
                                         product.in.get(), product.out.get(), product.out.get(),
                                         made, 1, &best, &count));
    TESSERA_CHECK(count == 1, "cuBLASLt has no algorithm for a weight's shape");
    return best.algo;
  }

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};
Library& library() {
  static Library instance;
  return instance;
}

// ---- activations, and what is added

TESSERA_DEVICE uint16_t bf16_bits(float value) {  // kernels/half.h's to_bf16
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

TESSERA_KERNEL(kRowThreads) narrow_kernel(MatrixView<const float> in, uint16_t* out) {
  const float* row = in.data + block_x() * in.stride;
  for (int64_t i = thread(); i < in.cols; i += kRowThreads) {
    out[block_x() * in.cols + i] = bf16_bits(row[i]);
  }
}

TESSERA_KERNEL(kRowThreads) add_bias_kernel(MatrixView<float> out, const float* bias) {
  float* row = out.data + block_x() * out.stride;
  for (int64_t i = thread(); i < out.cols; i += kRowThreads) {
    row[i] += bias[i];
  }
}

LaunchShape block_per_row(int64_t rows) {
  return {.grid_x = static_cast<int32_t>(rows), .threads = kRowThreads};
}

// ---- the ops

int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  switch (format) {
    case WeightFormat::f32:
      return rows * cols * 4;
    case WeightFormat::bf16:
      return rows * cols * 2;
    default:
      return 0;
  }
}

void pack(MatrixView<const float> source, int64_t first_row, const PackedWeight& weight) {
  TESSERA_CHECK(source.cols == weight.cols && first_row + source.rows <= weight.rows,
                "pack_weight: rows of another weight");
  const bool narrow = weight.format == WeightFormat::bf16;
  const size_t row_bytes = static_cast<size_t>(weight.cols) * (narrow ? 2 : 4);
  std::vector<bf16> halves(static_cast<size_t>(narrow ? weight.cols : 0));
  for (int64_t i = 0; i < source.rows; ++i) {
    const float* row = source.data + i * source.stride;
    const void* from = row;
    if (narrow) {
      for (size_t c = 0; c < halves.size(); ++c) {
        halves[c] = to_bf16(row[c]);
      }
      from = halves.data();
    }
    cuda::check(cudaMemcpy(weight.data + static_cast<size_t>(first_row + i) * row_bytes, from,
                           row_bytes, cudaMemcpyHostToDevice));
  }
}

int64_t scratch_bytes(int64_t tokens, int64_t cols) {
  return round_up(tokens * cols * 2, kAlign) + kAlign + static_cast<int64_t>(kWorkspaceBytes);
}

void multiply(const LinearArgs& args, Stream stream) {
  TESSERA_CHECK(args.in.cols == args.weight->cols && args.out.cols == args.weight->rows &&
                    args.in.rows == args.out.rows,
                "linear: shapes of in, weight and out");
  TESSERA_CHECK(scratch_bytes(args.in.rows, args.in.cols) <= std::ssize(args.scratch),
                "linear: scratch is too small");
  const auto start = reinterpret_cast<uintptr_t>(args.scratch.data());
  std::byte* scratch = args.scratch.data() + (kAlign - start % kAlign) % kAlign;
  const void* in = args.in.data;
  if (args.weight->format == WeightFormat::bf16) {
    auto* halves = reinterpret_cast<uint16_t*>(scratch + kWorkspaceBytes);
    launch(stream, block_per_row(args.in.rows), narrow_kernel, args.in, halves);
    in = halves;
  }
  const Product product(args, args.in.rows);
  const float one = 1;
  const float kept = args.accumulate ? 1 : 0;
  check(cublasLtMatmul(
      library().handle(), product.desc.get(), &one, args.weight->data, product.weight.get(), in,
      product.in.get(), &kept, args.out.data, product.out.get(), args.out.data, product.out.get(),
      &library().algorithm(args), scratch, kWorkspaceBytes, CudaStream::of(stream).handle()));
  if (!args.bias.empty()) {
    launch(stream, block_per_row(args.out.rows), add_bias_kernel, args.out, args.bias.data());
  }
}

}  // namespace

LinearOps linear_ops() {
  return {weight_bytes, pack, scratch_bytes, multiply};
}

}  // namespace tessera::cuda
