#include "files/gguf/tensor_types.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

struct GgufType {
  uint32_t number;
  const char* name;
  std::optional<TensorType> type;  // none: not supported
};

constexpr GgufType kTypes[] = {
    {0, "F32", TensorType::f32},
    {1, "F16", TensorType::f16},
    {30, "BF16", TensorType::bf16},
    {8, "Q8_0", TensorType::q8_0},
    {2, "Q4_0", TensorType::q4_0},
    {3, "Q4_1", TensorType::q4_1},
    {6, "Q5_0", TensorType::q5_0},
    {7, "Q5_1", TensorType::q5_1},
    {12, "Q4_K", TensorType::q4_k},
    {13, "Q5_K", TensorType::q5_k},
    {14, "Q6_K", TensorType::q6_k},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", {}},
};

std::string supported() {
  std::string names;
  for (const GgufType& type : kTypes) {
    if (type.type) absl::StrAppend(&names, names.empty() ? "" : ", ", type.name);
  }
  return names;
}

}  // namespace

absl::StatusOr<TensorType> gguf_tensor_type(uint32_t number) {
  for (const GgufType& type : kTypes) {
    if (type.number != number) continue;
    if (type.type) return *type.type;
    return absl::UnimplementedError(
        absl::StrCat("the type ", type.name, " is not supported; supported are ", supported()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the type number ", number, " is not known; supported are ", supported()));
}

}  // namespace tessera
