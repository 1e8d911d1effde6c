#pragma once

#include <filesystem>
#include <string>

#include "models/config.h"
#include "models/gguf/tensor_names.h"
#include "models/safetensors.h"
#include "tests/models/gguf/gguf_bytes.h"

namespace tessera {

inline uint32_t gguf_number(TensorType type) {
  return type == TensorType::f32 ? 0 : type == TensorType::f16 ? 1 : 30;
}

// Rows of each head in the order that llama.cpp's converter gives q and k.
inline std::string paired_rows(const std::string& bytes, int64_t rows, int64_t head_dim) {
  const size_t row_bytes = bytes.size() / static_cast<size_t>(rows);
  std::string paired;
  for (int64_t head = 0; head < rows / head_dim; ++head) {
    for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
      for (const int64_t half : {0, 1}) {
        const int64_t row = head * head_dim + half * head_dim / 2 + pair;
        paired += bytes.substr(static_cast<size_t>(row) * row_bytes, row_bytes);
      }
    }
  }
  return paired;
}

// Metadata that llama.cpp's converter writes for a model.
inline GgufBytes gguf_metadata(const ModelConfig& config, const std::string& name) {
  GgufBytes bytes;
  bytes.text("general.architecture", name);
  const auto u32 = [&](const char* key, int32_t value) {
    bytes.u32(name + "." + key, static_cast<uint32_t>(value));
  };
  u32("vocab_size", config.vocab);
  u32("block_count", config.layers);
  u32("embedding_length", config.hidden);
  u32("feed_forward_length", config.ffn);
  u32("attention.head_count", config.heads);
  u32("attention.head_count_kv", config.kv_heads);
  u32("attention.key_length", config.head_dim);
  u32("attention.value_length", config.head_dim);
  u32("context_length", config.context);
  if (config.sliding_window > 0) u32("attention.sliding_window", config.sliding_window);
  bytes.f32(name + ".attention.layer_norm_rms_epsilon", config.norm_epsilon);
  bytes.f32(name + ".rope.freq_base", config.rope_theta);
  bytes.u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(config.eos_ids.front()));
  return bytes;
}

// Adds the tensors of a safetensors file.
inline void add_tensors(const ModelConfig& config, const std::filesystem::path& safetensors,
                        GgufBytes& bytes) {
  const Architecture& architecture = architecture_of(config);
  const SafetensorsFile file = SafetensorsFile::open(safetensors).value();
  for (const auto& [name, tensor] : file.tensors()) {
    const std::string stored(reinterpret_cast<const char*>(tensor.bytes.data()),
                             tensor.bytes.size());
    const std::string own = gguf_name(name, architecture);
    const bool paired =
        architecture.gguf.interleaves_heads &&
        (name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos);
    bytes.tensor(own, std::vector<uint64_t>(tensor.shape.rbegin(), tensor.shape.rend()),
                 gguf_number(tensor.type),
                 paired ? paired_rows(stored, tensor.shape[0], config.head_dim) : stored);
  }
}

}  // namespace tessera
