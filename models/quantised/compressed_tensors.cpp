#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/quantised/methods.h"

namespace tessera::quantised {
namespace {

// weight_packed [outputs, inputs / 8] (four of 8 bits), or weight [outputs, inputs] of I8 or E4M3.
// weight_scale [outputs, groups], one column for each output, or one number. weight_zero_point
// [outputs / 8, groups] of words. weight_g_idx: the group of each input. Integers are stored from 0
// on, or with a sign as I8.
constexpr QuantisationMark kMarks[] = {{"weight_packed", TensorType::i32},
                                       {"weight", TensorType::i8},
                                       {"weight", TensorType::f8_e4m3}};

absl::Status check_format(const JsonFields& fields, const std::string& format) {
  for (const char* known : {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
                            "mixed-precision"}) {
    if (format == known) return absl::OkStatus();
  }
  return not_supported(fields, absl::StrCat("format ", in_quotes(format)),
                       "\"pack-quantized\", \"int-quantized\" and \"float-quantized\"");
}

absl::Status check_group(const nlohmann::json& group, const std::string& path) {
  if (!group.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a JSON object"));
  }
  JsonFields fields(group, path);
  const std::string format = fields.text_or("format", "pack-quantized");
  const nlohmann::json* weights = fields.object_or_null("weights");
  TESSERA_RETURN_IF_ERROR(fields.status());
  TESSERA_RETURN_IF_ERROR(check_format(fields, format));
  if (weights == nullptr) {
    return absl::OkStatus();  // the group is of activations or of the KV cache
  }
  JsonFields own(*weights, absl::StrCat(path, ": weights"));
  const int32_t bits = own.integer("num_bits", 1, 64);
  const std::string type = own.text_or("type", "int");
  TESSERA_RETURN_IF_ERROR(own.status());
  if (type == "int" ? bits != 4 && bits != 8 : type != "float" || bits != 8) {
    return not_supported(own, absl::StrCat("type ", in_quotes(type), " with num_bits ", bits),
                         "int with 4 and 8, float with 8");
  }
  return absl::OkStatus();
}

// Groups of layers may differ in bits and groups; each layer's tensors say which it has.
absl::Status read_config(JsonFields& fields, QuantisationConfig& /*config*/) {
  const std::string format = fields.text_or("format", "pack-quantized");
  const nlohmann::json* groups = fields.object_or_null("config_groups");
  const nlohmann::json* sparsity = fields.object_or_null("sparsity_config");
  TESSERA_RETURN_IF_ERROR(fields.status());
  TESSERA_RETURN_IF_ERROR(check_format(fields, format));
  if (sparsity != nullptr && sparsity->contains("format")) {
    JsonFields own(*sparsity, absl::StrCat(fields.path(), ": sparsity_config"));
    const std::string kind = own.text("format");
    TESSERA_RETURN_IF_ERROR(own.status());
    if (kind != "dense") {
      return not_supported(own, absl::StrCat("format ", in_quotes(kind)), "\"dense\"");
    }
  }
  if (groups == nullptr) {
    return absl::OkStatus();
  }
  for (const auto& [group_name, group] : groups->items()) {
    TESSERA_RETURN_IF_ERROR(check_group(
        group, absl::StrCat(fields.path(), ": config_groups: ", in_quotes(group_name))));
  }
  return absl::OkStatus();
}

// Sets rows and cols, and the bits of packed integers.
absl::Status read_codes(const ModuleTensors& tensors, QuantisedMatrix& matrix) {
  if (tensors.optional("weight_packed") == nullptr) {
    matrix.codes.tensor = *tensors.optional("weight");
    if (matrix.codes.tensor.shape.size() != 2) {
      return absl::InvalidArgumentError("weight: is no matrix");
    }
    matrix.rows = matrix.codes.tensor.shape[0];
    matrix.cols = matrix.codes.tensor.shape[1];
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(matrix.codes.tensor, tensors.integers("weight_packed", TensorType::i32));
  const StoredTensor* shape = tensors.optional("weight_shape");
  if (shape == nullptr || shape->shape != TensorShape{2} ||
      (shape->type != TensorType::i64 && shape->type != TensorType::i32)) {
    return absl::InvalidArgumentError("weight_shape: is missing, or not two of I64 or I32");
  }
  for (const bool second : {false, true}) {
    int64_t extent = 0;
    const int64_t bytes = bytes_of(shape->type);  // not negative, so I32 is extended by zeros
    std::memcpy(&extent, shape->bytes.data() + (second ? bytes : 0), static_cast<size_t>(bytes));
    if (extent < 1 || extent > int64_t{1} << 40) {
      return absl::InvalidArgumentError(absl::StrCat("weight_shape: holds ", extent));
    }
    (second ? matrix.cols : matrix.rows) = extent;
  }
  matrix.codes.packed = StoredIntegers::Neighbours::inputs;
  const int64_t words = matrix.codes.tensor.shape[1];
  matrix.codes.bits = matrix.cols <= words * 4 ? 8 : 4;
  return absl::OkStatus();
}

// The scales' columns tell the groups.
absl::StatusOr<int64_t> read_scales(const ModuleTensors& tensors, QuantisedMatrix& matrix) {
  TESSERA_ASSIGN_OR_RETURN(matrix.scales.tensor, tensors.scales("weight_scale"));
  const TensorShape& shape = matrix.scales.tensor.shape;
  const int64_t found = shape.empty() ? 1 : shape[0];
  const int64_t columns = shape.size() < 2 ? 1 : shape[1];
  if (found != matrix.rows) {
    // One scale, or blocks of 128 outputs.
    matrix.scales.outputs = found == 1 && columns == 1 ? matrix.rows : 128;
  }
  matrix.scales.inputs = matrix.cols;
  if (columns == 1) {
    return WeightEncoding::kWholeRow;
  }
  for (const int64_t group : {32, 64, 128}) {
    if (div_ceil(matrix.cols, group) != columns) continue;
    matrix.scales.inputs = group;
    return group;
  }
  return absl::UnimplementedError(absl::StrCat("weight_scale: ", columns, " scales for ",
                                               matrix.cols,
                                               " inputs; supported are groups of 32, 64, 128 and "
                                               "all inputs"));
}

absl::StatusOr<QuantisedMatrix> read_matrix(const ModuleTensors& tensors,
                                            const QuantisationConfig& /*config*/) {
  QuantisedMatrix matrix;
  TESSERA_RETURN_IF_ERROR(read_codes(tensors, matrix));
  TESSERA_ASSIGN_OR_RETURN(const int64_t group, read_scales(tensors, matrix));
  if (matrix.codes.tensor.type == TensorType::f8_e4m3) {
    if (group != WeightEncoding::kWholeRow && group != 128) {
      return absl::UnimplementedError(
          absl::StrCat("E4M3 in groups of ", group, "; supported are 128 and all inputs"));
    }
    matrix.format = group == 128 ? WeightFormat::fp8_group128 : WeightFormat::fp8;
    return matrix;
  }
  const bool zeros = tensors.optional("weight_zero_point") != nullptr;
  TESSERA_ASSIGN_OR_RETURN(matrix.format, grouped_format(matrix.codes.bits, group, zeros));
  if (zeros) {
    matrix.zeros = {.bits = matrix.codes.bits, .packed = StoredIntegers::Neighbours::outputs};
    TESSERA_ASSIGN_OR_RETURN(matrix.zeros.tensor,
                             tensors.integers("weight_zero_point", TensorType::i32));
  }
  if (const StoredTensor* groups = tensors.optional("weight_g_idx"); groups != nullptr) {
    TESSERA_RETURN_IF_ERROR(set_input_order(*groups, matrix));
  }
  return matrix;
}

}  // namespace

const QuantisationMethod kCompressedTensors{.name = "compressed-tensors",
                                            .marks = kMarks,
                                            .read_config = read_config,
                                            .read_matrix = read_matrix};

}  // namespace tessera::quantised
