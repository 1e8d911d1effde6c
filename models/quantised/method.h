#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "files/json_fields.h"
#include "files/quantised_matrix.h"

// How the quantised safetensors checkpoints of other projects store their weights. A method is one
// file and one line of the table in methods.cpp.
namespace tessera {

struct QuantisationMethod;

// The field quantization_config of a config.json, as far as it describes the tensors.
struct QuantisationConfig {
  const QuantisationMethod* method = nullptr;  // of the table, not owned
  int64_t bits = 0;                            // 0: the tensors say it
  int64_t group = 0;          // inputs that share a scale, or kWholeRow; 0: the tensors say it
  int32_t zero_added = 0;     // to stored zero points
  int64_t scale_outputs = 1;  // of a block with one scale; fp8 only
};

// The tensors of one linear layer: "MODULE.qweight", "MODULE.scales" ...
class ModuleTensors {
 public:
  using Find = std::function<const StoredTensor*(const std::string&)>;  // null: no such tensor

  // find: by the tensor's name. Not owned.
  ModuleTensors(std::string module, const Find& find) : module_(std::move(module)), find_(find) {}

  const std::string& module() const { return module_; }
  // Returns: null if the module has no such tensor.
  const StoredTensor* optional(std::string_view suffix) const;
  // Errors: NotFound, or InvalidArgument for another type or number of dimensions.
  absl::StatusOr<StoredTensor> integers(std::string_view suffix, TensorType type) const;
  // The same for F16, BF16 or F32 with at most two dimensions.
  absl::StatusOr<StoredTensor> scales(std::string_view suffix) const;

 private:
  absl::StatusOr<StoredTensor> required(std::string_view suffix) const;

  std::string module_;
  const Find& find_;
};

// A tensor that tells that its module is quantised.
struct QuantisationMark {
  std::string_view suffix;
  TensorType type;
};

// One line of the table of methods.
struct QuantisationMethod {
  std::string_view name;  // the field quant_method
  std::span<const QuantisationMark> marks;
  // Errors: Unimplemented, which names the unsupported value and all supported; InvalidArgument.
  absl::Status (*read_config)(JsonFields& fields, QuantisationConfig& config);
  // Errors: InvalidArgument and NotFound, without the file's name.
  absl::StatusOr<QuantisedMatrix> (*read_matrix)(const ModuleTensors& tensors,
                                                 const QuantisationConfig& config);
};

// Returns: none if there is no quantization_config.
// Errors: Unimplemented for a method that is not in the table, and those of read_config.
absl::StatusOr<std::optional<QuantisationConfig>> read_quantisation(JsonFields& config);

// The same of the config.json in a directory. Returns: none if there is no such file.
// Errors: also those of reading it; all name the file.
absl::StatusOr<std::optional<QuantisationConfig>> read_quantisation(
    const std::filesystem::path& directory);

// Returns: the module that a tensor marks as quantised; none for other tensors.
std::optional<std::string> marked_module(const QuantisationConfig& config,
                                         const std::string& tensor_name, TensorType type);

// Returns: the suffixes of tensors that belong to a quantised module's weight.
std::span<const std::string_view> quantisation_suffixes();

// Returns: true for scales of activations and of the KV cache. They are not read: activations have
// scales of their own here, and so have pages.
bool is_activation_scale(const std::string& tensor_name);

// Parts that methods share.

// Errors: Unimplemented; names `field`.
absl::Status not_supported(const JsonFields& fields, const std::string& what,
                           const std::string& instead);
// Returns: inputs of a group from the config's number, -1 for all.
// Errors: Unimplemented unless it is -1, 32, 64 or 128.
absl::StatusOr<int64_t> group_of(const JsonFields& fields, int64_t size);
// Returns: the format of integers with these groups.
// Errors: Unimplemented if there is none.
absl::StatusOr<WeightFormat> grouped_format(int64_t bits, int64_t group, bool zeros);
// Errors: InvalidArgument unless the shapes of codes, zeros and scales are those of rows and cols.
absl::Status check_shapes(const QuantisedMatrix& matrix);
// Sets the input order from each input's group (the tensor g_idx).
// Errors: InvalidArgument unless each group has as many inputs as it should.
absl::Status set_input_order(const StoredTensor& groups, QuantisedMatrix& matrix);

}  // namespace tessera
