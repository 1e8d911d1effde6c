#include "models/quantised/methods.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/mapped_file.h"

namespace tessera {
namespace {

const QuantisationMethod* const kTable[] = {
    &quantised::kCompressedTensors,
    &quantised::kAutoAwq,
    &quantised::kGptq,
    &quantised::kFp8,
};

constexpr std::string_view kSuffixes[] = {
    "qweight",       "qzeros",          "scales",       "g_idx",
    "weight_packed", "weight_scale",    "weight_shape", "weight_zero_point",
    "weight_g_idx",  "weight_scale_inv"};

std::string supported_methods() {
  std::vector<std::string> names;
  for (const auto* method : kTable) names.push_back(in_quotes(method->name));
  return absl::StrJoin(names, ", ");
}

absl::Status wrong(std::string_view suffix, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(suffix), ": ", what));
}

int64_t extent(const StoredTensor& tensor, size_t dimension) {
  return dimension < tensor.shape.size() ? tensor.shape[dimension] : 1;
}

absl::Status check_integers(const char* what, const StoredIntegers& numbers, int64_t outputs,
                            int64_t inputs) {
  const int64_t per = numbers.in_a_word();
  const bool by_inputs = numbers.packed == StoredIntegers::Neighbours::inputs;
  const int64_t rows = by_inputs ? outputs : div_ceil(outputs, per);
  const int64_t cols = by_inputs ? div_ceil(inputs, per) : inputs;
  const TensorShape expected =
      numbers.transposed ? TensorShape{cols, rows} : TensorShape{rows, cols};
  if (numbers.tensor.shape != expected) {
    return wrong(what, absl::StrCat("has shape ", shown(numbers.tensor.shape), ", expected ",
                                    shown(expected)));
  }
  return absl::OkStatus();
}

}  // namespace

const StoredTensor* ModuleTensors::optional(std::string_view suffix) const {
  return find_(absl::StrCat(module_, ".", std::string(suffix)));
}

absl::StatusOr<StoredTensor> ModuleTensors::required(std::string_view suffix) const {
  const StoredTensor* found = optional(suffix);
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat("misses its tensor ", std::string(suffix)));
  }
  return *found;
}

absl::StatusOr<StoredTensor> ModuleTensors::integers(std::string_view suffix,
                                                     TensorType type) const {
  TESSERA_ASSIGN_OR_RETURN(const StoredTensor tensor, required(suffix));
  if (tensor.type != type || tensor.shape.size() != 2) {
    return wrong(suffix,
                 absl::StrCat("is ", std::string(name(tensor.type)), " ", shown(tensor.shape),
                              ", expected a matrix of ", std::string(name(type))));
  }
  return tensor;
}

absl::StatusOr<StoredTensor> ModuleTensors::scales(std::string_view suffix) const {
  TESSERA_ASSIGN_OR_RETURN(const StoredTensor tensor, required(suffix));
  const bool plain = tensor.type == TensorType::f16 || tensor.type == TensorType::bf16 ||
                     tensor.type == TensorType::f32;
  if (!plain || tensor.shape.size() > 2) {
    return wrong(suffix, absl::StrCat("is ", std::string(name(tensor.type)), " ",
                                      shown(tensor.shape), ", expected F16, BF16 or F32"));
  }
  return tensor;
}

absl::StatusOr<std::optional<QuantisationConfig>> read_quantisation(JsonFields& config) {
  const nlohmann::json* object = config.object_or_null("quantization_config");
  TESSERA_RETURN_IF_ERROR(config.status());
  if (object == nullptr) {
    return std::optional<QuantisationConfig>();
  }
  JsonFields fields(*object, absl::StrCat(config.path(), ": quantization_config"));
  const std::string method = fields.text("quant_method");
  TESSERA_RETURN_IF_ERROR(fields.status());
  const auto found = std::ranges::find(kTable, method, &QuantisationMethod::name);
  if (found == std::end(kTable)) {
    return not_supported(fields, absl::StrCat("quant_method ", in_quotes(method)),
                         supported_methods());
  }
  QuantisationConfig read{.method = *found};
  TESSERA_RETURN_IF_ERROR(read.method->read_config(fields, read));
  TESSERA_RETURN_IF_ERROR(fields.status());
  return std::optional(read);
}

absl::StatusOr<std::optional<QuantisationConfig>> read_quantisation(
    const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const absl::StatusOr<std::string> text = read_small_file(path);
  if (absl::IsNotFound(text.status())) {
    return std::optional<QuantisationConfig>();
  }
  TESSERA_RETURN_IF_ERROR(text.status());
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json config, parse_strict_json(*text, path.string()));
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": is not a JSON object"));
  }
  JsonFields fields(config, path.string());
  return read_quantisation(fields);
}

std::optional<std::string> marked_module(const QuantisationConfig& config,
                                         const std::string& tensor_name, TensorType type) {
  for (const QuantisationMark& mark : config.method->marks) {
    const std::string ending = absl::StrCat(".", std::string(mark.suffix));
    if (type == mark.type && absl::EndsWith(tensor_name, ending)) {
      return tensor_name.substr(0, tensor_name.size() - ending.size());
    }
  }
  return std::nullopt;
}

std::span<const std::string_view> quantisation_suffixes() {
  return kSuffixes;
}

bool is_activation_scale(const std::string& tensor_name) {
  return absl::EndsWith(tensor_name, ".input_scale") || absl::EndsWith(tensor_name, ".k_scale") ||
         absl::EndsWith(tensor_name, ".v_scale");
}

absl::Status not_supported(const JsonFields& fields, const std::string& what,
                           const std::string& instead) {
  return absl::UnimplementedError(
      absl::StrCat(fields.path(), ": ", what, " is not supported; supported are ", instead));
}

absl::StatusOr<int64_t> group_of(const JsonFields& fields, int64_t size) {
  if (size == -1) {
    return WeightEncoding::kWholeRow;
  }
  if (size != 32 && size != 64 && size != 128) {
    return not_supported(fields, absl::StrCat("group_size ", size), "32, 64, 128 and -1");
  }
  return size;
}

absl::StatusOr<WeightFormat> grouped_format(int64_t bits, int64_t group, bool zeros) {
  for (const WeightFormatLine& line : kWeightFormatTable) {
    const WeightEncoding& stored = line.encoding;
    if (stored.row_scale && stored.bits == bits && stored.group == group && stored.zero == zeros) {
      return line.format;
    }
  }
  const std::string inputs = group == WeightEncoding::kWholeRow ? "all" : absl::StrCat(group);
  return absl::UnimplementedError(absl::StrCat(
      "weights of ", bits, " bits in groups of ", inputs, " inputs",
      zeros ? " with zero points" : "",
      " are not supported; supported are 4 bits, and 8 without zero points, in groups of 32, 64, "
      "128 or all inputs"));
}

absl::Status check_shapes(const QuantisedMatrix& matrix) {
  if (matrix.rows < 1 || matrix.cols < 1 || matrix.cols % 32 != 0) {
    return absl::UnimplementedError(
        absl::StrCat("has ", matrix.cols, " inputs; quantised weights need a multiple of 32"));
  }
  TESSERA_RETURN_IF_ERROR(check_integers("codes", matrix.codes, matrix.rows, matrix.cols));
  const int64_t groups = encoding(matrix.format).scales(matrix.cols);
  if (matrix.has_zeros()) {
    TESSERA_RETURN_IF_ERROR(check_integers("zero points", matrix.zeros, matrix.rows, groups));
  }
  const StoredScales& scales = matrix.scales;
  const std::pair found{extent(scales.tensor, 0), extent(scales.tensor, 1)};
  std::pair expected{div_ceil(matrix.rows, scales.outputs), div_ceil(matrix.cols, scales.inputs)};
  if (scales.transposed) std::swap(expected.first, expected.second);
  if (found != expected) {
    return wrong("scales", absl::StrCat("have shape ", shown(scales.tensor.shape), ", expected [",
                                        expected.first, ", ", expected.second, "]"));
  }
  return absl::OkStatus();
}

absl::Status set_input_order(const StoredTensor& groups, QuantisedMatrix& matrix) {
  const int64_t group = encoding(matrix.format).group;
  if (groups.type != TensorType::i32 || groups.shape != TensorShape{matrix.cols}) {
    return wrong("g_idx", absl::StrCat("is ", std::string(name(groups.type)), " ",
                                       shown(groups.shape), ", expected I32 [", matrix.cols, "]"));
  }
  const auto own = [&](int32_t input) {
    int32_t index;
    std::memcpy(&index, groups.bytes.data() + static_cast<ptrdiff_t>(input) * 4, sizeof(index));
    return index;
  };
  std::vector<int32_t> order(static_cast<size_t>(matrix.cols));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, own);
  bool sorted = true;
  for (int64_t i = 0; i < matrix.cols; ++i) {
    const int32_t input = order[static_cast<size_t>(i)];
    if (own(input) != i / group) {
      return wrong("g_idx", absl::StrCat("gives group ", i / group,
                                         " another number of inputs "
                                         "than ",
                                         group));
    }
    sorted = sorted && input == i;
  }
  matrix.input_order = sorted ? std::vector<int32_t>() : std::move(order);
  return absl::OkStatus();
}

}  // namespace tessera
