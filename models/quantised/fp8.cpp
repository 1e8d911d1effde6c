#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/quantised/methods.h"

namespace tessera::quantised {
namespace {

// weight [outputs, inputs] of E4M3. With weight_block_size [N, 128] the tensor weight_scale_inv has
// the scale of each block, which is multiplied in spite of its name. Else weight_scale has that of
// the tensor, or of each output.
constexpr QuantisationMark kMarks[] = {{"weight", TensorType::f8_e4m3}};

absl::Status read_config(JsonFields& fields, QuantisationConfig& config) {
  const std::string format = fields.text_or("fmt", "e4m3");
  const std::vector<int32_t> block = fields.integers_or_none("weight_block_size", 1, 1 << 20);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (format != "e4m3") {
    return not_supported(fields, absl::StrCat("fmt ", in_quotes(format)), "\"e4m3\"");
  }
  config.bits = 8;
  config.group = WeightEncoding::kWholeRow;
  if (block.empty()) {
    return absl::OkStatus();
  }
  if (block.size() != 2 || block[1] != 128) {
    return not_supported(
        fields, absl::StrCat("weight_block_size [", absl::StrJoin(block, ", "), "]"), "[N, 128]");
  }
  config.scale_outputs = block[0];
  config.group = block[1];
  return absl::OkStatus();
}

absl::StatusOr<QuantisedMatrix> read_matrix(const ModuleTensors& tensors,
                                            const QuantisationConfig& config) {
  QuantisedMatrix matrix;
  TESSERA_ASSIGN_OR_RETURN(matrix.codes.tensor, tensors.integers("weight", TensorType::f8_e4m3));
  matrix.rows = matrix.codes.tensor.shape[0];
  matrix.cols = matrix.codes.tensor.shape[1];
  if (config.group != WeightEncoding::kWholeRow) {
    matrix.format = WeightFormat::fp8_group128;
    matrix.scales = {.outputs = config.scale_outputs, .inputs = config.group};
    TESSERA_ASSIGN_OR_RETURN(matrix.scales.tensor, tensors.scales("weight_scale_inv"));
    return matrix;
  }
  matrix.format = WeightFormat::fp8;
  TESSERA_ASSIGN_OR_RETURN(matrix.scales.tensor, tensors.scales("weight_scale"));
  matrix.scales.inputs = matrix.cols;
  const TensorShape& shape = matrix.scales.tensor.shape;
  matrix.scales.outputs = shape.empty() || shape[0] == 1 ? matrix.rows : 1;
  return matrix;
}

}  // namespace

const QuantisationMethod kFp8{
    .name = "fp8", .marks = kMarks, .read_config = read_config, .read_matrix = read_matrix};

}  // namespace tessera::quantised
