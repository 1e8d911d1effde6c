#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/quantised/methods.h"

namespace tessera::quantised {
namespace {

// qweight [inputs, outputs / 8] and qzeros [groups, outputs / 8]: each word has eight outputs, in
// the order in which AutoAWQ's kernel unpacks them. scales [groups, outputs].
constexpr std::array<uint8_t, 8> kPlaces = {0, 4, 1, 5, 2, 6, 3, 7};
constexpr QuantisationMark kMarks[] = {{"qweight", TensorType::i32}};

absl::Status read_config(JsonFields& fields, QuantisationConfig& config) {
  const std::string version = fields.text_or("version", "gemm");
  config.bits = fields.integer("bits", 1, 64);
  const int32_t size = fields.integer("group_size", -1, 1 << 20);
  const bool zeros = fields.boolean_or("zero_point", true);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (version != "gemm" && version != "GEMM") {
    return not_supported(fields, absl::StrCat("version ", in_quotes(version)), "\"gemm\"");
  }
  if (config.bits != 4) {
    return not_supported(fields, absl::StrCat("bits ", config.bits), "4");
  }
  if (!zeros) {
    return not_supported(fields, "zero_point false", "true");
  }
  TESSERA_ASSIGN_OR_RETURN(config.group, group_of(fields, size));
  return absl::OkStatus();
}

absl::StatusOr<QuantisedMatrix> read_matrix(const ModuleTensors& tensors,
                                            const QuantisationConfig& config) {
  QuantisedMatrix matrix;
  TESSERA_ASSIGN_OR_RETURN(matrix.format, grouped_format(config.bits, config.group, true));
  StoredIntegers numbers{.bits = config.bits,
                         .packed = StoredIntegers::Neighbours::outputs,
                         .transposed = true,
                         .place = kPlaces};
  TESSERA_ASSIGN_OR_RETURN(numbers.tensor, tensors.integers("qweight", TensorType::i32));
  matrix.codes = numbers;
  TESSERA_ASSIGN_OR_RETURN(numbers.tensor, tensors.integers("qzeros", TensorType::i32));
  matrix.zeros = numbers;
  matrix.cols = matrix.codes.tensor.shape[0];
  matrix.rows = matrix.codes.tensor.shape[1] * numbers.in_a_word();
  matrix.scales = {.inputs = config.group, .transposed = true};
  TESSERA_ASSIGN_OR_RETURN(matrix.scales.tensor, tensors.scales("scales"));
  return matrix;
}

}  // namespace

const QuantisationMethod kAutoAwq{
    .name = "awq", .marks = kMarks, .read_config = read_config, .read_matrix = read_matrix};

}  // namespace tessera::quantised
