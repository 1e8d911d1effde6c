#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// Scaling of RoPE frequencies for contexts longer than in the model's first training.
struct RopeScaling {
  enum class Kind : uint8_t { none, linear, llama3, factors };
  Kind kind = Kind::none;
  float factor = 1;
  float low_freq_factor = 1;  // this and the next two: llama3 only
  float high_freq_factor = 4;
  int32_t original_context = 8192;
  std::vector<float> factors = {};  // factors only: [head_dim / 2] divisors of the frequencies
};

// Validated contents of config.json and generation_config.json of a Hugging Face directory, or of
// the metadata of a GGUF file.
struct ModelConfig {
  std::string architecture;  // a name of models/architectures/table.cpp
  int32_t vocab = 0;
  int32_t hidden = 0;
  int32_t layers = 0;
  int32_t heads = 0;           // query heads
  int32_t kv_heads = 0;        // divides heads
  int32_t head_dim = 0;        // even
  int32_t ffn = 0;             // width of the SwiGLU's inner layer
  int32_t experts = 0;         // of each layer's feed-forward block; 0: dense
  int32_t context = 0;         // max_position_embeddings, tokens
  int32_t sliding_window = 0;  // sliding window in tokens; 0: none
  float norm_epsilon = 1e-5f;
  float rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tied_head = false;
  int32_t bos_id = -1;           // -1: none
  std::vector<int32_t> eos_ids;  // any of them ends a generation

  int32_t query_width() const { return heads * head_dim; }
  int32_t kv_width() const { return kv_heads * head_dim; }
};

// Reads and checks a model's configuration. An empty generation_config_json counts as a missing
// file, which is allowed.
// Errors: NotFound (no config.json); InvalidArgument (not JSON, or a field that is missing, out of
// range or inconsistent; the message names it); Unimplemented (an architecture, activation or RoPE
// scaling that is not supported; the message names it and the supported ones).
absl::StatusOr<ModelConfig> parse_model_config(std::string_view config_json,
                                               std::string_view generation_config_json);

// The same of a Hugging Face directory, a GGUF file, or a directory with one (models/gguf/model.h).
// Errors: also those of find_gguf and GgufModel::open; errors of metadata name file and key.
absl::StatusOr<ModelConfig> read_model_config(const std::filesystem::path& model);

}  // namespace tessera
