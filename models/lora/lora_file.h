#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "files/gguf/gguf_file.h"
#include "files/safetensors.h"
#include "files/stored_tensor.h"
#include "models/config/model_config.h"

namespace tessera {

// The two matrices that change one tensor of a model. Their bytes are not owned.
struct LoraPair {
  std::optional<StoredTensor> a;  // [rank, inputs]
  std::optional<StoredTensor> b;  // [outputs, rank]
  float scale = 0;                // of B A
};

// An adapter's files, mapped read-only: a directory as PEFT saves it, with adapter_config.json and
// adapter_model.safetensors, or a GGUF file as llama.cpp's convert_lora_to_gguf.py writes it.
class LoraFile {
 public:
  // Reads everything but the numbers. `config` is the model's, by which tensors of a GGUF file get
  // their names.
  // Errors: NotFound; InvalidArgument for files that are not an adapter, for a matrix without its
  // partner, or for a rank above kMaxLoraRank; Unimplemented for what this engine lacks, by name:
  // embeddings, lm_head, modules_to_save, DoRA, biases, patterns of ranks. Each names the file.
  static absl::StatusOr<LoraFile> open(const std::filesystem::path& path,
                                       const ModelConfig& config);

  // By the name of the changed tensor in a Hugging Face checkpoint:
  // "model.layers.0.self_attn.q_proj.weight".
  const std::map<std::string, LoraPair>& pairs() const { return pairs_; }
  const std::filesystem::path& path() const { return path_; }

  // Returns: "FILE: MODULE", for error messages.
  std::string describe(const std::string& tensor_name) const;

 private:
  explicit LoraFile(std::filesystem::path path) : path_(std::move(path)) {}

  absl::Status open_peft(const std::filesystem::path& directory, const ModelConfig& config);
  absl::Status open_gguf(const ModelConfig& config);
  absl::Status check_pairs() const;

  std::filesystem::path path_;  // of the tensors
  std::optional<SafetensorsFile> safetensors_;
  std::optional<GgufFile> gguf_;  // in its place
  std::map<std::string, LoraPair> pairs_;
};

}  // namespace tessera
