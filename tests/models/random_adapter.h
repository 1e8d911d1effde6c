#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "files/safetensors.h"
#include "models/config/model_config.h"
#include "models/weights/tensor_table.h"
#include "nlohmann/json.hpp"

namespace tessera {

// An adapter with random matrices, the same on every machine.
struct RandomAdapter {
  uint32_t seed = 1;
  int32_t rank = 4;
  float alpha = 8;
  bool stabilised = false;  // use_rslora
  TensorType type = TensorType::f32;
  std::set<WeightSlot> slots = {WeightSlot::qkv, WeightSlot::attention_out, WeightSlot::gate_up,
                                WeightSlot::down};
};

inline NamedTensor random_matrix(std::string name, TensorShape shape, TensorType type,
                                 std::mt19937& random) {
  NamedTensor tensor{std::move(name), type, std::move(shape), {}};
  const int64_t count = tensor.shape[0] * tensor.shape[1];
  const float size = 1 / std::sqrt(static_cast<float>(tensor.shape[1]));
  for (int64_t i = 0; i < count; ++i) {
    const float value = size * (static_cast<float>(random() % 65536) / 32768 - 1);
    const size_t bytes = type == TensorType::f32 ? 4 : 2;
    const bf16 half = to_bf16(value);
    const auto* from = type == TensorType::f32 ? reinterpret_cast<const std::byte*>(&value)
                                               : reinterpret_cast<const std::byte*>(&half);
    tensor.bytes.insert(tensor.bytes.end(), from, from + bytes);
  }
  return tensor;
}

// Returns: A and B of each linear module of attention and of dense feed-forward blocks, with the
// names that PEFT gives them.
inline std::vector<NamedTensor> random_pairs(const ModelConfig& config, const RandomAdapter& of) {
  std::mt19937 random(of.seed);
  std::vector<NamedTensor> tensors;
  std::set<std::string> seen;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    const bool wanted = of.slots.contains(tensor.slot) && tensor.shape.size() == 2 &&
                        tensor.index.expert == TensorIndex::kNone;
    if (!wanted || !seen.insert(tensor.name).second) continue;
    const std::string module =
        "base_model.model." + tensor.name.substr(0, tensor.name.rfind(".weight"));
    tensors.push_back(
        random_matrix(module + ".lora_A.weight", {of.rank, tensor.shape[1]}, of.type, random));
    tensors.push_back(
        random_matrix(module + ".lora_B.weight", {tensor.shape[0], of.rank}, of.type, random));
  }
  return tensors;
}

// Returns: the adapter_config.json that PEFT saves.
inline nlohmann::json adapter_config(const RandomAdapter& of) {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", "random"},
          {"r", of.rank},
          {"lora_alpha", of.alpha},
          {"use_rslora", of.stabilised},
          {"bias", "none"},
          {"modules_to_save", nullptr},
          {"rank_pattern", nlohmann::json::object()},
          {"init_lora_weights", true},
          {"target_modules",
           {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj",
            "gate_up_proj"}}};
}

// Writes a directory as PEFT saves it.
inline void write_adapter(const std::filesystem::path& directory, const nlohmann::json& config,
                          const std::vector<NamedTensor>& tensors) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "adapter_config.json") << config.dump(2) << "\n";
  ASSERT_TRUE(write_safetensors(directory / "adapter_model.safetensors", tensors).ok());
}

inline void write_random_adapter(const std::filesystem::path& directory, const ModelConfig& config,
                                 const RandomAdapter& of = {}) {
  write_adapter(directory, adapter_config(of), random_pairs(config, of));
}

}  // namespace tessera
