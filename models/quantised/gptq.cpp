#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/quantised/methods.h"

namespace tessera::quantised {
namespace {

// qweight [inputs / 8, outputs]: each word has eight inputs (four of 8 bits). qzeros [groups,
// outputs / 8], in checkpoint_format "gptq" one less than the zero point. scales [groups, outputs].
// g_idx: the group of each input.
constexpr QuantisationMark kMarks[] = {{"qweight", TensorType::i32}};

absl::Status read_config(JsonFields& fields, QuantisationConfig& config) {
  const std::string format = fields.text_or("checkpoint_format", "gptq");
  config.bits = fields.integer("bits", 1, 64);
  const int32_t size = fields.integer("group_size", -1, 1 << 20);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (format != "gptq" && format != "gptq_v2") {
    return not_supported(fields, absl::StrCat("checkpoint_format ", in_quotes(format)),
                         "\"gptq\" and \"gptq_v2\"");
  }
  if (config.bits != 4 && config.bits != 8) {
    return not_supported(fields, absl::StrCat("bits ", config.bits), "4 and 8");
  }
  config.zero_added = format == "gptq" ? 1 : 0;
  TESSERA_ASSIGN_OR_RETURN(config.group, group_of(fields, size));
  return absl::OkStatus();
}

// Symmetric files have a zero point for each group too, always in the middle.
bool is_symmetric(const QuantisedMatrix& matrix) {
  const int64_t groups = matrix.zeros.tensor.shape[0];
  const int64_t words = groups * matrix.zeros.tensor.shape[1];
  for (int64_t word = 0; word < words; ++word) {
    uint32_t numbers;
    std::memcpy(&numbers, matrix.zeros.tensor.bytes.data() + word * 4, sizeof(numbers));
    for (int64_t bit = 0; bit < 32; bit += matrix.zeros.bits) {
      const auto zero = static_cast<int32_t>(numbers >> bit & ((1u << matrix.zeros.bits) - 1));
      if (zero + matrix.zeros.added != 1 << (matrix.zeros.bits - 1)) return false;
    }
  }
  return true;
}

absl::StatusOr<QuantisedMatrix> read_matrix(const ModuleTensors& tensors,
                                            const QuantisationConfig& config) {
  QuantisedMatrix matrix;
  matrix.codes = {
      .bits = config.bits, .packed = StoredIntegers::Neighbours::inputs, .transposed = true};
  TESSERA_ASSIGN_OR_RETURN(matrix.codes.tensor, tensors.integers("qweight", TensorType::i32));
  matrix.zeros = {.bits = config.bits,
                  .packed = StoredIntegers::Neighbours::outputs,
                  .transposed = true,
                  .added = config.zero_added};
  TESSERA_ASSIGN_OR_RETURN(matrix.zeros.tensor, tensors.integers("qzeros", TensorType::i32));
  matrix.cols = matrix.codes.tensor.shape[0] * matrix.codes.in_a_word();
  matrix.rows = matrix.codes.tensor.shape[1];
  matrix.scales = {.inputs = config.group, .transposed = true};
  TESSERA_ASSIGN_OR_RETURN(matrix.scales.tensor, tensors.scales("scales"));
  const bool symmetric = is_symmetric(matrix);
  TESSERA_ASSIGN_OR_RETURN(matrix.format, grouped_format(config.bits, config.group, !symmetric));
  TESSERA_RETURN_IF_ERROR(check_shapes(matrix));
  if (symmetric) matrix.zeros = {};
  if (const StoredTensor* groups = tensors.optional("g_idx"); groups != nullptr) {
    TESSERA_RETURN_IF_ERROR(set_input_order(*groups, matrix));
  }
  return matrix;
}

}  // namespace

const QuantisationMethod kGptq{
    .name = "gptq", .marks = kMarks, .read_config = read_config, .read_matrix = read_matrix};

}  // namespace tessera::quantised
