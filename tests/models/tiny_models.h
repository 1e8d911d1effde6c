#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/safetensors.h"

namespace tessera {

// A small model of one kind, for random checkpoints.
struct TinyModel {
  std::string name;
  ModelConfig config;
  TensorType type = TensorType::f32;
  int32_t shards = 1;
};

inline ModelConfig tiny_llama_config() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab = 131;  // not a multiple of any tile size
  config.hidden = 48;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;  // not hidden / heads
  config.ffn = 72;
  config.context = 192;
  config.eos_ids = {2};
  return config;
}

// Returns: models that cover every architecture and every config option at least once.
inline std::vector<TinyModel> tiny_models() {
  std::vector<TinyModel> models;
  const auto add = [&](std::string name, auto change, TensorType type = TensorType::f32,
                       int32_t shards = 1) {
    TinyModel model{std::move(name), tiny_llama_config(), type, shards};
    change(model.config);
    models.push_back(std::move(model));
  };
  add("llama", [](ModelConfig&) {});
  add("llama_tied", [](ModelConfig& c) { c.tied_head = true; });
  add(
      "llama_f16", [](ModelConfig&) {}, TensorType::f16);
  add(
      "llama_bf16_tied", [](ModelConfig& c) { c.tied_head = true; }, TensorType::bf16);
  add(
      "llama_sharded", [](ModelConfig&) {}, TensorType::bf16, 3);
  add("llama_one_kv_head", [](ModelConfig& c) { c.kv_heads = 1; });
  add("llama_all_heads", [](ModelConfig& c) { c.kv_heads = c.heads; });
  add("llama_wide_heads", [](ModelConfig& c) { c.head_dim = 128; });
  add("llama_odd_sizes", [](ModelConfig& c) {
    c.hidden = 39;
    c.ffn = 67;
    c.heads = 3;
    c.kv_heads = 1;
    c.head_dim = 8;
  });
  add("llama_linear_rope", [](ModelConfig& c) {
    c.rope_scaling = {RopeScaling::Kind::linear, 4, 1, 4, 8192};
  });
  add("llama31", [](ModelConfig& c) {
    c.rope_theta = 500000;
    c.rope_scaling = {RopeScaling::Kind::llama3, 8, 1, 4, 96};
  });
  add("mistral", [](ModelConfig& c) {
    c.architecture = "MistralForCausalLM";
    c.rope_theta = 1e6f;
  });
  add("mistral_window", [](ModelConfig& c) {
    c.architecture = "MistralForCausalLM";
    c.sliding_window = 24;
  });
  add("qwen2", [](ModelConfig& c) {
    c.architecture = "Qwen2ForCausalLM";
    c.norm_epsilon = 1e-6f;
    c.tied_head = true;
  });
  add("qwen3", [](ModelConfig& c) {
    c.architecture = "Qwen3ForCausalLM";
    c.head_dim = 32;  // neither hidden / heads nor the default
    c.norm_epsilon = 1e-6f;
    c.rope_theta = 1e6f;
    c.tied_head = true;
  });
  add(
      "qwen3_bf16_wide_heads",
      [](ModelConfig& c) {
        c.architecture = "Qwen3ForCausalLM";
        c.kv_heads = 1;
        c.head_dim = 128;
        c.norm_epsilon = 1e-6f;
        c.rope_theta = 1e6f;
      },
      TensorType::bf16);
  return models;
}

inline std::vector<int32_t> random_tokens(int32_t count, int32_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

}  // namespace tessera
