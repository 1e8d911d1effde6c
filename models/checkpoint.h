#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/safetensors.h"

namespace tessera {

// The weights of a Hugging Face directory: model.safetensors, or model.safetensors.index.json and
// the shards it names (the single file goes first, as in transformers). A shard is named by a plain
// file name: an index cannot point outside its directory.
class Checkpoint {
 public:
  // Maps the file or all shards. Errors name the file: NotFound, InvalidArgument.
  static absl::StatusOr<Checkpoint> open(const std::filesystem::path& directory);

  // The tensor, of that very shape and of a readable type. Errors name file and tensor:
  // NotFound, InvalidArgument (another shape: both are said), Unimplemented (the type).
  absl::StatusOr<const StoredTensor*> tensor(const std::string& tensor_name,
                                             std::span<const int64_t> shape) const;

  // "FILE: tensor NAME", for messages about a tensor that is there.
  std::string describe(const std::string& tensor_name) const;

  // What all tensors of two dimensions are stored as; f32 where they differ.
  TensorType matrix_type() const;

  // All tensors' names, in order.
  std::vector<std::string> names() const;

 private:
  Checkpoint() = default;
  absl::Status open_shards(const std::filesystem::path& index);

  struct Place {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };

  std::filesystem::path directory_;
  std::map<std::string, SafetensorsFile> files_;  // by file name; nodes do not move
  std::map<std::string, Place> places_;           // by tensor name
};

}  // namespace tessera
