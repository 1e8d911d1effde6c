#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "files/gguf/gguf_model.h"
#include "files/safetensors.h"
#include "models/architectures/architecture.h"
#include "models/quantised/method.h"

namespace tessera {

// The weights of a model, mapped read-only. Reads model.safetensors of a Hugging Face directory, or
// model.safetensors.index.json and its shards. The single file has priority, as in transformers. A
// shard must be a plain file name, so an index cannot point outside its directory. Also reads a
// GGUF file (files/gguf/gguf_model.h); its tensors have the names of a Hugging Face directory. Of a
// quantised directory (models/quantised/), the tensors of a linear layer are one: "MODULE.weight".
// A tensor that holds several others (StackedTensor) is replaced by them.
class Checkpoint {
 public:
  // Maps the single file or all shards.
  // Errors: NotFound, InvalidArgument; each names the file. Of a GGUF file also those of
  // read_gguf_config, of a directory those of read_quantisation.
  static absl::StatusOr<Checkpoint> open(const std::filesystem::path& model);

  // Returns: the tensor with exactly this shape and a readable type. Not owned; valid as long as
  // this checkpoint.
  // Errors: NotFound, InvalidArgument (another shape; the message has both), Unimplemented (the
  // type); each names file and tensor.
  absl::StatusOr<const StoredTensor*> tensor(const std::string& tensor_name,
                                             std::span<const int64_t> shape) const;

  // Drops pages behind a reader of neighbouring rows (MappedFile::drop_passed_pages), where rows
  // are stored one after another.
  // Requires: a tensor of this checkpoint.
  void drop_rows(const std::string& tensor_name, int64_t first, int64_t rows) const;
  // Drops all pages of a tensor and of the scales that belong to it.
  void drop_tensor(const std::string& tensor_name) const;

  // Returns: "FILE: tensor NAME", for error messages.
  // Requires: the tensor exists.
  std::string describe(const std::string& tensor_name) const;

  // Returns: true for a bias of zeros of a quantised module. Old GPTQ files have one for each.
  bool is_zero_bias(const std::string& tensor_name) const;

  // Returns: the kept_type() of all tensors that are quantised.
  std::set<std::string> quantised_types() const;

  // Returns: the types of the two-dimensional tensors.
  std::set<TensorType> matrix_types() const;

  // Returns: true for a GGUF file, whose norms are stored as they are multiplied.
  bool is_gguf() const { return gguf_.has_value(); }

  // Returns: the names of all tensors, sorted.
  std::vector<std::string> names() const;

 private:
  struct Place {
    std::filesystem::path file;
    StoredTensor tensor;
  };

  explicit Checkpoint(std::filesystem::path path) : path_(std::move(path)) {}
  absl::Status open_shards(const std::filesystem::path& index);
  absl::Status open_gguf();
  absl::Status open_mistral();
  absl::Status add_experts(Place all, const std::string& pattern, int32_t experts);
  void add(const SafetensorsFile& file, const std::string& tensor_name);
  absl::Status split_stacked();
  absl::Status join_quantised();
  absl::Status join_module(const std::string& module, const std::string& codes,
                           const QuantisationConfig& config);
  std::string stored_name(const std::string& tensor_name) const;
  using Drop = void (MappedFile::*)(std::span<const std::byte> part) const;
  void drop(std::span<const std::byte> part, Drop how) const;

  std::filesystem::path path_;
  std::map<std::string, SafetensorsFile> files_;  // by file name
  std::optional<GgufModel> gguf_;                 // instead of safetensors files
  const Architecture* gguf_names_ = nullptr;      // null: tensors keep their names
  std::map<std::string, Place> places_;           // by tensor name
  std::map<std::string, std::unique_ptr<QuantisedMatrix>> matrices_;  // by tensor name
};

}  // namespace tessera
