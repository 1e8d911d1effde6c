#pragma once

#include <map>
#include <random>
#include <string>

#include "files/stored_tensor.h"
#include "models/weights/tensor_table.h"
#include "tests/models/gguf/gguf_checkpoint.h"

namespace tessera {

// A GGUF file with random blocks, as large as it takes superblocks of 256 in every matrix.
inline ModelConfig quantised_config() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab = 320;
  config.hidden = 256;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.ffn = 512;
  config.context = 128;
  config.tied_head = true;
  config.eos_ids = {2};
  return config;
}

inline uint32_t quantised_number(TensorType type) {
  switch (type) {
    case TensorType::q4_0:
      return 2;
    case TensorType::q4_1:
      return 3;
    case TensorType::q5_0:
      return 6;
    case TensorType::q5_1:
      return 7;
    case TensorType::q8_0:
      return 8;
    case TensorType::q4_k:
      return 12;
    case TensorType::q5_k:
      return 13;
    case TensorType::q6_k:
      return 14;
    default:
      return gguf_number(type);
  }
}

// Blocks of random bits, with scales that give weights of about 0.03.
inline std::string random_blocks(TensorType type, int64_t values, std::mt19937& random) {
  std::string bytes(static_cast<size_t>(values / block_values(type) * block_bytes(type)), '\0');
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
  const WeightEncoding stored = encoding(weight_format(type));
  const float codes = static_cast<float>(1 << (stored.bits - 1));
  const float factors = stored.superblock == 0 ? 1.0f : stored.minimum ? 32.0f : 64.0f;
  const auto put = [&](size_t at, float number) {
    const f16 half = to_f16(number / codes / factors);
    std::memcpy(bytes.data() + at, &half, sizeof(half));
  };
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(block_bytes(type))) {
    const float scale = 0.02f + 0.02f * static_cast<float>(random() % 100) / 100;
    put(at + (type == TensorType::q6_k ? 208 : 0), scale);
    if (stored.minimum) put(at + 2, (stored.superblock > 0 ? scale : -scale) * codes);
  }
  return bytes;
}

// Returns: a file whose matrices have the types that type_of(name) gives them. All experts of a
// layer are one tensor.
template <class TypeOf>
std::string quantised_file(const ModelConfig& config, const TypeOf& type_of) {
  std::mt19937 random(19);
  GgufBytes bytes = gguf_metadata(config, "llama");
  std::map<std::string, std::pair<TensorShape, std::string>> stacks;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    if (tensor.slot == WeightSlot::head) continue;  // tied
    const std::string own = gguf_name(tensor.name, architecture_of(config));
    if (tensor.shape.size() == 1) {
      std::string ones;
      for (int64_t i = 0; i < tensor.shape[0]; ++i) put_number(ones, 1.0f);
      bytes.tensor(own, {static_cast<uint64_t>(tensor.shape[0])}, 0, ones);
      continue;
    }
    const TensorType type = type_of(own);
    if (tensor.index.expert != TensorIndex::kNone) {
      auto& [shape, blocks] = stacks[own];
      shape = tensor.shape;
      blocks += random_blocks(type, shape[0] * shape[1], random);
      continue;
    }
    bytes.tensor(
        own, {static_cast<uint64_t>(tensor.shape[1]), static_cast<uint64_t>(tensor.shape[0])},
        quantised_number(type), random_blocks(type, tensor.shape[0] * tensor.shape[1], random));
  }
  for (const auto& [own, stack] : stacks) {
    const auto& [shape, blocks] = stack;
    bytes.tensor(own,
                 {static_cast<uint64_t>(shape[1]), static_cast<uint64_t>(shape[0]),
                  static_cast<uint64_t>(config.experts)},
                 quantised_number(type_of(own)), blocks);
  }
  return bytes.file();
}

}  // namespace tessera
