#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/stream/cuda_stream.h"
#include "kernels/matrix/e4m3.h"

// Weights are stored in their original order, row by row: in bf16, f16 or f32, or as E4M3 with a
// scale for each row. cuBLASLt computes products with sums in f32. Activations are rounded to the
// weights' type, as on the CPU; for E4M3 they have a scale for each token.
//
// A row's result must not depend on the number of rows, but cuBLASLt's heuristics use that number.
// Therefore one algorithm without split-K is chosen for each shape of a weight, when it is packed.
// cuBLASLt must accept it for kAccepted tokens. A product of random numbers must have the same bits
// for all of kProven tokens.

namespace tessera::cuda {
namespace {

// In order of preference: the heuristic is asked for these numbers of tokens.
constexpr int64_t kAccepted[] = {64, 1, 8192};
constexpr int64_t kProven[] = {300, 64, 1};  // the first has the rows of all others
constexpr int kCandidates = 8;               // algorithms for each number of tokens
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int64_t kAlign = 256;
constexpr uint32_t kOperandAlign = 64;  // models/weights/aligned_memory.h
#define TESSERA_OUTER_SCALES 120900     // cuBLAS since CUDA 12.9
constexpr size_t kOuterScalesSince = TESSERA_OUTER_SCALES;

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

// Stands for the scales of a product that is asked about but not run. cuBLASLt suggests no
// algorithm without their addresses.
alignas(kAlign) constexpr float kNoScales[1] = {};

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

// The key of a weight's algorithm.
struct WeightShape {
  WeightFormat format = WeightFormat::f32;
  int64_t outputs = 0;
  int64_t inputs = 0;

  bool operator<(const WeightShape& other) const {
    return std::tie(format, outputs, inputs) < std::tie(other.format, other.outputs, other.inputs);
  }

  // Returns: a product to ask cuBLASLt about. To run it, its scales must be replaced.
  ProductShape of_tokens(int64_t tokens) const {
    return {format, outputs, inputs, tokens, inputs, outputs, kNoScales, kNoScales};
  }
};

// cuBLASLt handle and the algorithms of weights, for the one device of the process.
class Library {
 public:
  using Algorithm = cublasLtMatmulAlgo_t;

  Library() { check(cublasLtCreate(&handle_)); }

  // Returns: algorithms that cuBLASLt accepts for every number of tokens of kAccepted; empty if it
  // has no such products.
  const std::vector<Algorithm>& candidates(const WeightShape& weight) {
    const auto [found, added] = candidates_.try_emplace(weight);
    for (const int64_t tokens : kAccepted) {
      for (const Algorithm& algorithm :
           added ? suggested(weight.of_tokens(tokens), CUBLASLT_REDUCTION_SCHEME_NONE)
                 : std::vector<Algorithm>{}) {
        if (std::ranges::all_of(kAccepted, [&](int64_t other) {
              return accepts(weight.of_tokens(other), algorithm);
            })) {
          found->second.push_back(algorithm);
        }
      }
    }
    return found->second;
  }

  bool has_algorithm(const WeightShape& weight) const { return algorithms_.contains(weight); }
  void set_algorithm(const WeightShape& weight, const Algorithm& algorithm) {
    algorithms_.emplace(weight, algorithm);
  }
  const Algorithm& algorithm(const WeightShape& weight) const {
    const auto found = algorithms_.find(weight);
    TESSERA_CHECK(found != algorithms_.end(), "linear: a weight that was not packed");
    return found->second;
  }

  // Returns: the suggestions of the heuristic, the best first. splits: allowed reduction schemes of
  // split-K. With a split, the order of a sum depends on the shape.
  std::vector<Algorithm> suggested(const ProductShape& shape, uint32_t splits) const {
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
    cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, product.desc.get(), product.weight.get(), product.in.get(), product.out.get(),
        product.out.get(), made, kCandidates, results, &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
      check(status);
    }
    std::vector<Algorithm> algorithms;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS) {
        algorithms.push_back(results[i].algo);
      }
    }
    return algorithms;
  }

  // Device memory of one product. Not owned.
  struct Operands {
    const void* weight;
    const void* in;
    float* out;
    float kept;            // factor of the old values of `out`; 0: they are not read
    std::byte* workspace;  // kWorkspaceBytes bytes
  };

  // Computes out = weight * in (+ out * kept).
  void run(const ProductShape& shape, const cublasLtMatmulAlgo_t& algorithm,
           const Operands& operands, Stream stream) const {
    const Product product(shape);
    const float one = 1;
    check(cublasLtMatmul(handle_, product.desc.get(), &one, operands.weight, product.weight.get(),
                         operands.in, product.in.get(), &operands.kept, operands.out,
                         product.out.get(), operands.out, product.out.get(), &algorithm,
                         operands.workspace, kWorkspaceBytes, CudaStream::of(stream).handle()));
  }

 private:
  bool accepts(const ProductShape& shape, const Algorithm& algorithm) const {
    const Product product(shape);
    cublasLtMatmulHeuristicResult_t result = {};
    return cublasLtMatmulAlgoCheck(handle_, product.desc.get(), product.weight.get(),
                                   product.in.get(), product.out.get(), product.out.get(),
                                   &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspaceBytes;
  }

  cublasLtHandle_t handle_ = nullptr;
  std::map<WeightShape, std::vector<Algorithm>> candidates_;
  std::map<WeightShape, Algorithm> algorithms_;
};
Library& library() {
  static Library instance;
  return instance;
}

// ---- the ops

// Older libraries have no products with a scale for each row and column. The heuristic tells if the
// device has them.
bool knows_outer_scales() {
  return CUBLAS_VERSION >= kOuterScalesSince && cublasLtGetVersion() >= kOuterScalesSince;
}

int64_t code_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return rows * cols * element_bytes(format);
}

// Returns: bytes of a packed weight; 0 if its products are not supported. fp8: codes, then a scale
// for each row.
int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  const bool fp8 = format == WeightFormat::fp8;
  if (!multiplies(format, rows, cols) || (fp8 && !knows_outer_scales()) ||
      library().candidates({format, rows, cols}).empty()) {
    return 0;
  }
  const int64_t codes = code_bytes(format, rows, cols);
  return fp8 ? round_up(codes, kAlign) + rows * 4 : codes;
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

// Device memory for the proof of an algorithm.
struct Freed {
  void operator()(std::byte* memory) const { cuda::check(cudaFree(memory)); }
};
using ProofBytes = std::unique_ptr<std::byte, Freed>;
ProofBytes proof_bytes(int64_t bytes) {
  void* memory = nullptr;
  cuda::check(cudaMalloc(&memory, static_cast<size_t>(bytes)));
  return ProofBytes(static_cast<std::byte*>(memory));
}

// Products of one weight with random activations.
class Proof {
 public:
  explicit Proof(const PackedWeight& weight)
      : weight_(weight),
        shape_{weight.format, weight.rows, weight.cols},
        in_(proof_bytes(code_bytes(weight.format, kProven[0], weight.cols))),
        scales_(proof_bytes(kProven[0] * 4)),
        out_(proof_bytes(kProven[0] * weight.rows * 4)),
        workspace_(proof_bytes(static_cast<int64_t>(kWorkspaceBytes))) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> row(static_cast<size_t>(weight.cols));
    std::vector<std::byte> rows(
        static_cast<size_t>(code_bytes(weight.format, kProven[0], weight.cols)));
    std::vector<float> scales;
    for (int64_t i = 0; i < kProven[0]; ++i) {
      std::generate(row.begin(), row.end(), [&] { return normal(random); });
      scales.push_back(
          convert_row(row, weight.format, rows.data() + code_bytes(weight.format, i, weight.cols)));
    }
    upload(in_.get(), rows.data(), rows.size());
    upload(scales_.get(), scales.data(), scales.size() * sizeof(float));
  }

  // Returns: true if every row has the same bits among each of kProven tokens.
  bool holds(const cublasLtMatmulAlgo_t& algorithm) {
    const std::vector<float> longest = product(kProven[0], algorithm);
    return std::ranges::all_of(kProven, [&](int64_t tokens) {
      const std::vector<float> rows = product(tokens, algorithm);
      return std::memcmp(rows.data(), longest.data(), rows.size() * sizeof(float)) == 0;
    });
  }

 private:
  std::vector<float> product(int64_t tokens, const cublasLtMatmulAlgo_t& algorithm) {
    ProductShape shape = shape_.of_tokens(tokens);
    shape.weight_scales = scales_of(weight_);
    shape.in_scales = reinterpret_cast<float*>(scales_.get());
    library().run(
        shape, algorithm,
        {weight_.data, in_.get(), reinterpret_cast<float*>(out_.get()), 0, workspace_.get()},
        stream_.stream());
    std::vector<float> rows(static_cast<size_t>(tokens * weight_.rows));
    stream_.download(rows.data(), out_.get(), rows.size() * sizeof(float));
    return rows;
  }

  const PackedWeight& weight_;
  const WeightShape shape_;
  CudaStream stream_;
  const ProofBytes in_, scales_, out_, workspace_;
};

// Chooses the algorithm of a weight's shape. The weight's rows are on the device.
void choose_algorithm(const PackedWeight& weight) {
  const WeightShape shape{weight.format, weight.rows, weight.cols};
  if (library().has_algorithm(shape)) {
    return;
  }
  Proof proof(weight);
  const auto& candidates = library().candidates(shape);
  const auto holds = [&](const cublasLtMatmulAlgo_t& algorithm) { return proof.holds(algorithm); };
  const auto found = std::ranges::find_if(candidates, holds);
  TESSERA_CHECK(found != candidates.end(),
                "cuBLASLt has no algorithm whose rows have the same bits for "
                "every number of rows");
  library().set_algorithm(shape, *found);
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
  if (first_row + source.rows == weight.rows) {
    choose_algorithm(weight);
  }
}

// Contents: rounded activations, then the workspace.
int64_t scratch_bytes(int64_t tokens, int64_t cols) {
  return rounded_bytes(tokens, cols) + static_cast<int64_t>(kWorkspaceBytes);
}

void multiply(const LinearArgs& args, Stream stream) {
  const PackedWeight& weight = *args.weight;
  TESSERA_CHECK(
      args.in.cols == weight.cols && args.out.cols == weight.rows && args.in.rows == args.out.rows,
      "linear: shapes of in, weight and out");
  TESSERA_CHECK(scratch_bytes(args.in.rows, args.in.cols) <= std::ssize(args.scratch),
                "linear: scratch is too small");
  const Activations in = activations_of(args, stream);
  const bool fp8 = weight.format == WeightFormat::fp8;
  const ProductShape shape{.format = weight.format,
                           .outputs = weight.rows,
                           .inputs = weight.cols,
                           .tokens = args.in.rows,
                           .in_stride = in.stride,
                           .out_stride = args.out.stride,
                           .weight_scales = fp8 ? scales_of(weight) : nullptr,
                           .in_scales = fp8 ? in.scales : nullptr};
  library().run(shape, library().algorithm({weight.format, weight.rows, weight.cols}),
                {weight.data, in.rows, args.out.data, args.accumulate ? 1.0f : 0.0f,
                 scratch_behind_rows(args.scratch, args.in.rows, args.in.cols)},
                stream);
  if (!args.bias.empty()) {
    add_bias(args.out, args.bias.data(), stream);
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
    const auto suggested = library().suggested(shape, CUBLASLT_REDUCTION_SCHEME_MASK);
    TESSERA_CHECK(!suggested.empty(), "cuBLASLt has no product for the peak rate");
    best.emplace(arithmetic, suggested.front());
  }
  library().run(shape, best.at(arithmetic),
                {memory, memory + factor, out, 0,
                 reinterpret_cast<std::byte*>(out + shape.outputs * shape.tokens)},
                stream);
  return 2 * shape.outputs * shape.inputs * shape.tokens;
}

}  // namespace

LinearOps linear_ops() {
  return {weight_bytes, pack, scratch_bytes, multiply, peak_bytes, peak};
}

}  // namespace tessera::cuda
