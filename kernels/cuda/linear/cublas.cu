#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/simt/simt.h"
#include "kernels/e4m3.h"

// Weights are stored in their original order, row by row: in bf16, f16 or f32, or as E4M3 with a
// scale for each row. cuBLASLt computes products with sums in f32. Activations are rounded to the
// weights' type, as on the CPU; for E4M3 they have a scale for each token.
//
// A row's result must not depend on the number of rows, but cuBLASLt's heuristics use that number.
// Therefore one algorithm is chosen for each shape of a weight, once, for kTypicalTokens tokens and
// without split-K. It serves every number of tokens: the sum of a tile then has one order.

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int64_t kTypicalTokens = 64;  // tokens of a decode step
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int64_t kAlign = 256;
constexpr uint32_t kOperandAlign = 64;  // models/aligned_memory.h
#define TESSERA_OUTER_SCALES 120900     // cuBLAS since CUDA 12.9
constexpr size_t kOuterScalesSince = TESSERA_OUTER_SCALES;
constexpr int32_t kRowThreads = 256;

void check(cublasStatus_t status) {
  TESSERA_CHECK(status == CUBLAS_STATUS_SUCCESS, cublasLtGetStatusString(status));
}

// Each call creates and destroys its cuBLASLt objects, because these are plain descriptions.
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

cudaDataType_t type_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::bf16:
      return CUDA_R_16BF;
    case WeightFormat::f16:
      return CUDA_R_16F;
    case WeightFormat::fp8:
      return CUDA_R_8F_E4M3;
    default:
      return CUDA_R_32F;
  }
}

int64_t element_bytes(WeightFormat format) {
  return format == WeightFormat::f32 ? 4 : format == WeightFormat::fp8 ? 1 : 2;
}

struct ProductShape {
  WeightFormat format = WeightFormat::f32;
  int64_t outputs = 0;
  int64_t inputs = 0;
  int64_t tokens = 0;
  int64_t in_stride = 0;  // in elements of the weight's type
  int64_t out_stride = 0;
  const float* weight_scales = nullptr;  // fp8: one for each output
  const float* in_scales = nullptr;      // fp8: one for each token
};

// out^T [outputs, tokens] = weight [outputs, inputs] * in^T [inputs, tokens], in the column-major
// order of cuBLAS.
struct Product {
  explicit Product(const ProductShape& shape) {
    const cudaDataType_t type = type_of(shape.format);
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    desc = MatmulDesc(made);
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
#if CUBLAS_VERSION >= TESSERA_OUTER_SCALES
    if (shape.format == WeightFormat::fp8) {
      const int32_t outer = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, outer);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, outer);
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, shape.weight_scales);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, shape.in_scales);
    }
#endif
    weight = layout(type, shape.inputs, shape.outputs, shape.inputs);
    in = layout(type, shape.inputs, shape.tokens, shape.in_stride);
    out = layout(CUDA_R_32F, shape.outputs, shape.tokens, shape.out_stride);
  }

  MatmulDesc desc;
  Layout weight, in, out;

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)));
  }
};

// cuBLASLt handle and the algorithms chosen so far, for the one device of the process.
class Library {
 public:
  Library() { check(cublasLtCreate(&handle_)); }

  const cublasLtMatmulAlgo_t& algorithm(ProductShape shape) {
    const Key key{shape.format, shape.outputs, shape.inputs, shape.out_stride};
    const auto found = algorithms_.find(key);
    if (found != algorithms_.end()) {
      return found->second;
    }
    shape.tokens = kTypicalTokens;
    return algorithms_.emplace(key, choose(shape, CUBLASLT_REDUCTION_SCHEME_NONE)).first->second;
  }

  // splits: allowed reduction schemes of split-K. With a split, the order of a sum depends on the
  // shape.
  cublasLtMatmulAlgo_t choose(const ProductShape& shape, uint32_t splits) const {
    const Product product(shape);
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made));
    const Preference preference(made);
    const auto set_preference = [made](cublasLtMatmulPreferenceAttributes_t attribute,
                                       const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)));
    };
    set_preference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    set_preference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, splits);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set_preference(attribute, kOperandAlign);
    }
    cublasLtMatmulHeuristicResult_t best = {};
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle_, product.desc.get(), product.weight.get(),
                                         product.in.get(), product.out.get(), product.out.get(),
                                         made, 1, &best, &count));
    TESSERA_CHECK(count == 1, "cuBLASLt has no algorithm for a weight's shape");
    return best.algo;
  }

  // Computes out = weight * in (+ out * kept). `workspace`: kWorkspaceBytes bytes of device memory.
  void run(const ProductShape& shape, const cublasLtMatmulAlgo_t& algorithm, const void* weight,
           const void* in, float* out, float kept, std::byte* workspace, Stream stream) const {
    const Product product(shape);
    const float one = 1;
    check(cublasLtMatmul(handle_, product.desc.get(), &one, weight, product.weight.get(), in,
                         product.in.get(), &kept, out, product.out.get(), out, product.out.get(),
                         &algorithm, workspace, kWorkspaceBytes, CudaStream::of(stream).handle()));
  }

 private:
  using Key = std::tuple<WeightFormat, int64_t, int64_t, int64_t>;

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};
Library& library() {
  static Library instance;
  return instance;
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

// Only Hopper has products with a scale for each row and column.
bool multiplies_fp8() {
  int major = 0;
  return CUBLAS_VERSION >= kOuterScalesSince && cublasLtGetVersion() >= kOuterScalesSince &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         major == 9;
}

int64_t code_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return rows * cols * element_bytes(format);
}

// Returns: bytes of a packed weight; 0 if its products are not supported. fp8: codes, then a scale
// for each row; both dimensions must be multiples of 16.
int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  switch (format) {
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::f16:
      return code_bytes(format, rows, cols);
    case WeightFormat::fp8:
      return multiplies_fp8() && rows % 16 == 0 && cols % 16 == 0
                 ? round_up(code_bytes(format, rows, cols), kAlign) + rows * 4
                 : 0;
    default:
      return 0;
  }
}

float* scales_of(const PackedWeight& weight) {
  return reinterpret_cast<float*>(
      weight.data + round_up(code_bytes(weight.format, weight.rows, weight.cols), kAlign));
}

// Returns: the row's scale; 1 if its format has none.
float convert_row(std::span<const float> row, WeightFormat format, std::byte* out) {
  float scale = 1;
  if (format == WeightFormat::f32) {
    std::memcpy(out, row.data(), row.size_bytes());
  } else if (format == WeightFormat::bf16) {
    std::transform(row.begin(), row.end(), reinterpret_cast<bf16*>(out), to_bf16);
  } else if (format == WeightFormat::f16) {
    std::transform(row.begin(), row.end(), reinterpret_cast<f16*>(out), to_f16);
  } else {
    float largest = 0;
    for (const float weight : row) {
      largest = std::max(largest, std::abs(weight));
    }
    scale = largest / kLargestE4m3;
    const float inverse = scale > 0 ? 1 / scale : 0;
    std::transform(row.begin(), row.end(), reinterpret_cast<e4m3*>(out),
                   [inverse](float weight) { return to_e4m3(weight * inverse); });
  }
  return scale;
}

void pack(MatrixView<const float> source, int64_t first_row, const PackedWeight& weight) {
  TESSERA_CHECK(source.cols == weight.cols && first_row + source.rows <= weight.rows,
                "pack_weight: rows of another weight");
  const auto row_bytes = static_cast<size_t>(weight.cols * element_bytes(weight.format));
  std::vector<std::byte> rows(static_cast<size_t>(source.rows) * row_bytes);
  std::vector<float> scales;
  for (int64_t i = 0; i < source.rows; ++i) {
    scales.push_back(convert_row(source.row(i), weight.format,
                                 rows.data() + static_cast<size_t>(i) * row_bytes));
  }
  upload(weight.data + static_cast<size_t>(first_row) * row_bytes, rows.data(), rows.size());
  if (weight.format == WeightFormat::fp8) {
    upload(scales_of(weight) + first_row, scales.data(), scales.size() * sizeof(float));
  }
}

// Contents: workspace, scales of tokens, converted activations.
int64_t scratch_bytes(int64_t tokens, int64_t cols) {
  return kAlign + static_cast<int64_t>(kWorkspaceBytes) + round_up(tokens * 4, kAlign) +
         round_up(tokens * cols * 2, kAlign);
}

void multiply(const LinearArgs& args, Stream stream) {
  const PackedWeight& weight = *args.weight;
  TESSERA_CHECK(
      args.in.cols == weight.cols && args.out.cols == weight.rows && args.in.rows == args.out.rows,
      "linear: shapes of in, weight and out");
  TESSERA_CHECK(scratch_bytes(args.in.rows, args.in.cols) <= std::ssize(args.scratch),
                "linear: scratch is too small");
  const auto start = reinterpret_cast<uintptr_t>(args.scratch.data());
  std::byte* workspace = args.scratch.data() + (kAlign - start % kAlign) % kAlign;
  auto* scales = reinterpret_cast<float*>(workspace + kWorkspaceBytes);
  std::byte* converted = workspace + kWorkspaceBytes + round_up(args.in.rows * 4, kAlign);
  ProductShape shape{.format = weight.format,
                     .outputs = weight.rows,
                     .inputs = weight.cols,
                     .tokens = args.in.rows,
                     .in_stride = weight.cols,
                     .out_stride = args.out.stride};
  const void* in = converted;
  if (weight.format == WeightFormat::bf16) {
    to_bf16_rows(args.in, reinterpret_cast<bf16*>(converted), stream);
  } else if (weight.format == WeightFormat::f16) {
    to_f16_rows(args.in, reinterpret_cast<f16*>(converted), stream);
  } else if (weight.format == WeightFormat::fp8) {
    to_e4m3_rows(args.in, reinterpret_cast<uint8_t*>(converted), scales, stream);
    shape.weight_scales = scales_of(weight);
    shape.in_scales = scales;
  } else {
    in = args.in.data;
    shape.in_stride = args.in.stride;
  }
  library().run(shape, library().algorithm(shape), weight.data, in, args.out.data,
                args.accumulate ? 1 : 0, workspace, stream);
  if (!args.bias.empty()) {
    launch(stream, block_per_row(args.out.rows), add_bias_kernel, args.out, args.bias.data());
  }
}

// ---- peak rate of the device

ProductShape peak_shape(WeightFormat arithmetic) {
  const int64_t size = arithmetic == WeightFormat::f32 ? 4096 : 8192;
  return {arithmetic, size, size, size, size, size};
}

// Returns: bytes of both factors, their scales, the product and the workspace, all multiples of
// kAlign; 0 if there is no such product.
int64_t peak_bytes(WeightFormat arithmetic) {
  const ProductShape shape = peak_shape(arithmetic);
  return weight_bytes(arithmetic, kAlign, kAlign) == 0
             ? 0
             : 2 * code_bytes(arithmetic, shape.outputs, shape.inputs) + 2 * shape.outputs * 4 +
                   shape.outputs * shape.tokens * 4 + static_cast<int64_t>(kWorkspaceBytes);
}

int64_t peak(WeightFormat arithmetic, std::byte* memory, Stream stream) {
  ProductShape shape = peak_shape(arithmetic);
  const int64_t factor = code_bytes(arithmetic, shape.outputs, shape.inputs);
  auto* scales = reinterpret_cast<float*>(memory + 2 * factor);
  float* out = scales + 2 * shape.outputs;
  shape.weight_scales = scales;
  shape.in_scales = scales + shape.outputs;
  static std::map<WeightFormat, cublasLtMatmulAlgo_t> best;
  if (!best.contains(arithmetic)) {
    best.emplace(arithmetic, library().choose(shape, CUBLASLT_REDUCTION_SCHEME_MASK));
  }
  library().run(shape, best.at(arithmetic), memory, memory + factor, out, 0,
                reinterpret_cast<std::byte*>(out + shape.outputs * shape.tokens), stream);
  return 2 * shape.outputs * shape.inputs * shape.tokens;
}

}  // namespace

LinearOps linear_ops() {
  return {weight_bytes, pack, scratch_bytes, multiply, peak_bytes, peak};
}

}  // namespace tessera::cuda
