#include "tests/kernels/cuda/stand_in/blas.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "kernels/matrix/e4m3.h"
#include "kernels/matrix/half.h"
#include "tests/kernels/cuda/stand_in/runtime.h"

namespace tessera::stand_in {
namespace {

struct Desc {
  cublasOperation_t transpose_weight = CUBLAS_OP_N;
  int32_t scale_mode[2] = {};  // of A and B
  const float* scales[2] = {};
};
struct Matrix {
  cudaDataType_t type;
  int64_t rows;
  int64_t cols;
  int64_t leading;

  int64_t bytes_of_element() const {
    return type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 ? 1 : 2;
  }
  size_t bytes() const {
    return static_cast<size_t>(((cols - 1) * leading + rows) * bytes_of_element());
  }
};
struct Preferred {
  size_t workspace = 0;
  uint32_t splits = 0;
  uint32_t alignment = 256;
};
struct Chosen {
  Order order;
  uint32_t alignment;
};

std::vector<Order> g_orders{Order::by_inputs};
bool g_fp8 = true;
std::map<Order, int64_t> g_products;

// The library's descriptions are plain memory of fixed size; ours lie in theirs.
template <class Mine, class Theirs>
Mine get(const Theirs* theirs) {
  static_assert(sizeof(Mine) <= sizeof(Theirs) && std::is_trivially_copyable_v<Mine>);
  Mine mine;
  std::memcpy(static_cast<void*>(&mine), theirs, sizeof(mine));
  return mine;
}
template <class Mine, class Theirs>
void put(Theirs* theirs, const Mine& mine) {
  static_assert(sizeof(Mine) <= sizeof(Theirs) && std::is_trivially_copyable_v<Mine>);
  std::memcpy(static_cast<void*>(theirs), &mine, sizeof(mine));
}
template <class Theirs, class Mine>
cublasStatus_t create(Theirs** made, const Mine& mine) {
  *made = new Theirs{};
  put(*made, mine);
  return CUBLAS_STATUS_SUCCESS;
}

float element(const Matrix& matrix, const void* data, int64_t row, int64_t col) {
  const int64_t at = col * matrix.leading + row;
  switch (matrix.type) {
    case CUDA_R_32F:
      return static_cast<const float*>(data)[at];
    case CUDA_R_16BF:
      return to_f32(static_cast<const bf16*>(data)[at]);
    case CUDA_R_16F:
      return to_f32(static_cast<const f16*>(data)[at]);
    default:
      return to_f32(static_cast<const e4m3*>(data)[at]);
  }
}

struct Call {
  Desc desc;
  Matrix weight, in, out;
  const void* weight_data;
  const void* in_data;
  float* out_data;
  float kept;
  Order order;
};

void multiply(const Call& call) {
  ++g_products[call.order];
  const int64_t inputs = call.weight.rows;
  const bool backwards = call.order == Order::by_tokens && call.in.cols > 64;
  for (int64_t token = 0; token < call.in.cols; ++token) {
    for (int64_t output = 0; output < call.weight.cols; ++output) {
      float sum = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        const int64_t k = backwards ? inputs - 1 - i : i;
        sum += element(call.weight, call.weight_data, k, output) *
               element(call.in, call.in_data, k, token);
      }
      if (call.desc.scales[0] != nullptr) {
        sum *= call.desc.scales[0][output] * call.desc.scales[1][token];
      }
      float& out = call.out_data[token * call.out.leading + output];
      out = call.kept == 0 ? sum : sum + call.kept * out;
    }
  }
}

size_t workspace_of(Order order) {
  return order == Order::much_workspace ? size_t{1} << 40 : 4096;
}

}  // namespace

void suggest(std::vector<Order> orders, bool fp8) {
  g_orders = std::move(orders);
  g_fp8 = fp8;
}

int64_t take_products(Order order) {
  return std::exchange(g_products[order], 0);
}

}  // namespace tessera::stand_in

using namespace tessera::stand_in;

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t) {
  return "an error of cuBLASLt";
}
size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int instance;
  *handle = reinterpret_cast<cublasLtHandle_t>(&instance);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  TESSERA_CHECK(compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F, "sums of another type");
  return create(made, Desc{});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) {
  delete made;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t made,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto desc = get<Desc>(made);
  const auto set = [&](auto& field) {
    TESSERA_CHECK(bytes == sizeof(field), "an attribute of another size");
    std::memcpy(&field, value, bytes);
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      set(desc.transpose_weight);
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      set(desc.scale_mode[0]);
      break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      set(desc.scale_mode[1]);
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      set(desc.scales[0]);
      break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      set(desc.scales[1]);
      break;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  put(made, desc);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t leading) {
  return create(made,
                Matrix{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), leading});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made) {
  delete made;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return create(made, Preferred{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) {
  delete made;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t made,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  auto preferred = get<Preferred>(made);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    std::memcpy(&preferred.workspace, value, sizeof(size_t));
  } else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    std::memcpy(&preferred.splits, value, sizeof(uint32_t));
  } else {
    TESSERA_CHECK(bytes == sizeof(uint32_t), "an alignment is 32 bits");
    uint32_t alignment = 0;
    std::memcpy(&alignment, value, bytes);
    preferred.alignment = std::min(preferred.alignment, alignment);
  }
  put(made, preferred);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t made,
                                              cublasLtMatrixLayout_t weight, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  *count = 0;
  if (get<Matrix>(weight).type == CUDA_R_8F_E4M3 && !g_fp8) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto desc = get<Desc>(made);
  for (int side = 0; side < 2; ++side) {  // as cuBLASLt 13.1 on an H100
    if (desc.scale_mode[side] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F &&
        desc.scales[side] == nullptr) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const auto preferred = get<Preferred>(preference);
  for (const Order order : g_orders) {
    if (*count < most) {
      cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
      put(&result.algo, Chosen{order, preferred.alignment});
      result.workspaceSize = workspace_of(order);
      result.state = CUBLAS_STATUS_SUCCESS;
    }
  }
  return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t in,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Order order = get<Chosen>(algorithm).order;
  result->workspaceSize = workspace_of(order);
  return order == Order::few_tokens && get<Matrix>(in).cols > 64 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                 : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t made, const void* factor,
                              const void* weight, cublasLtMatrixLayout_t weight_layout,
                              const void* in, cublasLtMatrixLayout_t in_layout, const void* kept,
                              const void* added, cublasLtMatrixLayout_t, void* out,
                              cublasLtMatrixLayout_t out_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t bytes,
                              cudaStream_t stream) {
  const auto chosen = get<Chosen>(algorithm);
  Call call{get<Desc>(made),
            get<Matrix>(weight_layout),
            get<Matrix>(in_layout),
            get<Matrix>(out_layout),
            weight,
            in,
            static_cast<float*>(out),
            0,
            chosen.order};
  std::memcpy(&call.kept, kept, sizeof(float));
  float one = 0;
  std::memcpy(&one, factor, sizeof(float));
  TESSERA_CHECK(one == 1 && added == out && call.desc.transpose_weight == CUBLAS_OP_T,
                "another product than out = weight^T in");
  TESSERA_CHECK(call.weight.rows == call.in.rows && call.out.rows == call.weight.cols &&
                    call.out.cols == call.in.cols && call.out.leading >= call.out.rows &&
                    call.in.leading >= call.in.rows,
                "shapes of a product");
  TESSERA_CHECK(on_device(weight, call.weight.bytes()) && on_device(in, call.in.bytes()) &&
                    on_device(out, call.out.bytes()) && on_device(workspace, bytes),
                "an operand of a product is not on the device");
  for (const void* operand : {weight, in, static_cast<const void*>(out)}) {
    TESSERA_CHECK(reinterpret_cast<uintptr_t>(operand) % chosen.alignment == 0,
                  "an operand is less aligned than the heuristic was told");
  }
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(workspace) % 256 == 0, "workspace is not aligned");
  if (call.weight.type == CUDA_R_8F_E4M3) {
    for (int side = 0; side < 2; ++side) {
      const int64_t scales = side == 0 ? call.weight.cols : call.in.cols;
      TESSERA_CHECK(
          call.desc.scale_mode[side] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F &&
              on_device(call.desc.scales[side], static_cast<size_t>(scales) * sizeof(float)),
          "scales of an E4M3 product");
    }
  }
  if (bytes < workspace_of(chosen.order)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  launch(stream, [call] { multiply(call); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
