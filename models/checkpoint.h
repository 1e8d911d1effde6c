#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/safetensors.h"

namespace tessera {

// The weights of a Hugging Face directory, mapped read-only. Reads model.safetensors, or
// model.safetensors.index.json and its shards. The single file has priority, as in transformers. A
// shard must be a plain file name, so an index cannot point outside its directory.
class Checkpoint {
 public:
  // Maps the single file or all shards.
  // Errors: NotFound, InvalidArgument; each names the file.
  static absl::StatusOr<Checkpoint> open(const std::filesystem::path& directory);

  // Returns: the tensor with exactly this shape and a readable type. Not owned; valid as long as
  // this checkpoint.
  // Errors: NotFound, InvalidArgument (another shape; the message has both), Unimplemented (the
  // type); each names file and tensor.
  absl::StatusOr<const StoredTensor*> tensor(const std::string& tensor_name,
                                             std::span<const int64_t> shape) const;

  // Returns: "FILE: tensor NAME", for error messages.
  // Requires: the tensor exists.
  std::string describe(const std::string& tensor_name) const;

  // Returns: the type of all two-dimensional tensors, or f32 if their types differ.
  TensorType matrix_type() const;

  // Returns: the names of all tensors, sorted.
  std::vector<std::string> names() const;

 private:
  Checkpoint() = default;
  absl::Status open_shards(const std::filesystem::path& index);

  struct Place {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };

  std::filesystem::path directory_;
  std::map<std::string, SafetensorsFile> files_;  // by file name; map nodes have stable addresses
  std::map<std::string, Place> places_;           // by tensor name
};

}  // namespace tessera
