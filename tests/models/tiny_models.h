#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "files/safetensors.h"
#include "models/config/model_config.h"

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

// A list of models to which add() appends.
class TinyFamilies {
 public:
  template <class Change>
  void add(const char* name, const char* architecture, Change change) {
    TinyModel model{name, tiny_llama_config()};
    model.config.architecture = architecture;
    model.config.context = 512;
    change(model.config);
    models_.push_back(std::move(model));
  }
  std::vector<TinyModel> take() { return std::move(models_); }

 private:
  std::vector<TinyModel> models_;
};

inline void tiny_yarn(ModelConfig& c) {
  c.rope_scaling.kind = RopeScaling::Kind::yarn;
  c.rope_scaling.factor = 4;
  c.rope_scaling.original_context = 128;
  c.rope_scaling.attention_factor = 1.125f;
}

// The windows of five layers of six are shorter than a prompt, and have a RoPE of their own.
inline void tiny_gemma3(ModelConfig& c) {
  c.layers = 6;
  c.sliding_window = 24;
  c.layer_kinds.assign(6, {.windowed = true});
  c.layer_kinds.back().windowed = false;
  c.rope_theta = 1e6f;
  c.local_rope_theta = 10000;
  c.activation = Activation::gelu_tanh;
  c.multipliers.embedding = std::sqrt(static_cast<float>(c.hidden));
  c.multipliers.attention = 0.25f;  // 1 / sqrt(head_dim)
  c.tied_head = true;
}

inline void tiny_experts(ModelConfig& c) {
  c.ffn = 40;
  c.experts = c.own_experts = 8;
  c.chosen_experts = 2;
  c.normalise_experts = true;
}

// A shared expert has another width than the others.
inline void tiny_shared_expert(ModelConfig& c) {
  tiny_experts(c);
  c.shared_ffn = 56;
}

inline void add_tiny_llamas(TinyFamilies& to) {
  to.add("llama_biases", "LlamaForCausalLM", [](ModelConfig& c) {
    c.attention_bias = c.ffn_bias = true;
    c.activation = Activation::gelu;
  });
  to.add("llama_gelu_tanh", "LlamaForCausalLM",
         [](ModelConfig& c) { c.activation = Activation::gelu_tanh; });
  to.add("llama_dynamic_rope", "LlamaForCausalLM", [](ModelConfig& c) {
    c.rope_scaling.kind = RopeScaling::Kind::dynamic;
    c.rope_scaling.factor = 4;
    c.rope_scaling.original_context = c.context;
  });
  to.add("llama_yarn", "LlamaForCausalLM", tiny_yarn);
}

inline void add_tiny_mistrals(TinyFamilies& to) {
  to.add("mistral_nemo", "MistralForCausalLM", [](ModelConfig& c) { c.rope_theta = 1e6f; });
  to.add("ministral_layer_types", "MinistralForCausalLM", [](ModelConfig& c) {
    c.sliding_window = 24;
    c.layers = 3;
    c.layer_kinds = {{.windowed = true}, {.windowed = false}, {.windowed = true}};
  });
  to.add("ministral3", "Ministral3ForCausalLM", [](ModelConfig& c) {
    tiny_yarn(c);
    c.rope_scaling.query_growth = 0.5f;
  });
  to.add("mistral3_text", "Mistral3ForConditionalGeneration", [](ModelConfig& c) {
    tiny_yarn(c);
    c.rope_scaling.query_growth = 0.1f;
    c.tied_head = true;
  });
  to.add("mistral_small_text", "Mistral3ForConditionalGeneration",
         [](ModelConfig& c) { c.rope_theta = 1e9f; });
  to.add("mixtral", "MixtralForCausalLM", tiny_experts);
}

inline void add_tiny_qwens(TinyFamilies& to) {
  to.add("qwen2_window_layers", "Qwen2ForCausalLM", [](ModelConfig& c) {
    c.sliding_window = 24;
    c.layer_kinds = {{.windowed = false}, {.windowed = true}};
  });
  to.add("qwen3_biases", "Qwen3ForCausalLM", [](ModelConfig& c) { c.attention_bias = true; });
  to.add("qwen3_moe", "Qwen3MoeForCausalLM", tiny_experts);
  to.add("qwen3_moe_shares", "Qwen3MoeForCausalLM", [](ModelConfig& c) {
    tiny_experts(c);
    c.chosen_experts = 3;
    c.normalise_experts = false;
  });
}

inline void add_tiny_mixtures(TinyFamilies& to) {
  to.add("qwen2_moe", "Qwen2MoeForCausalLM", [](ModelConfig& c) {
    tiny_shared_expert(c);
    c.shared_gate = true;
    c.normalise_experts = false;
  });
  to.add("qwen2_moe_sums", "Qwen2MoeForCausalLM", [](ModelConfig& c) {
    tiny_shared_expert(c);
    c.shared_gate = true;
    c.tied_head = true;
  });
  const Multipliers multipliers{
      .embedding = 12, .residual = 0.25f, .attention = 0.125f, .logits_divisor = 8};
  to.add("granite_moe", "GraniteMoeForCausalLM", [&](ModelConfig& c) {
    tiny_experts(c);
    c.multipliers = multipliers;
  });
  to.add("granite_moe_shared", "GraniteMoeSharedForCausalLM", [&](ModelConfig& c) {
    tiny_shared_expert(c);
    c.multipliers = multipliers;
    c.attention_bias = true;
  });
}

inline void add_tiny_further_families(TinyFamilies& to) {
  to.add("phi3", "Phi3ForCausalLM", [](ModelConfig& c) { c.sliding_window = 100; });
  to.add("phi3_longrope", "Phi3ForCausalLM", [](ModelConfig& c) {
    c.hidden = 64;  // transformers checks the factors against hidden / heads
    c.rope_scaling.kind = RopeScaling::Kind::longrope;
    c.rope_scaling.factor = 8;
    c.rope_scaling.original_context = 64;
    c.rope_scaling.attention_factor = 1.25f;
    c.rope_scaling.short_factors = {1, 1, 1, 1, 1.5f, 1.5f, 2, 2};
    c.rope_scaling.long_factors = {1, 1.5f, 2, 3, 5, 8, 13, 21};
  });
  // Phi-4-mini: three quarters of each head are rotated, with a factor for each of these pairs.
  to.add("phi3_partial", "Phi3ForCausalLM", [](ModelConfig& c) {
    c.hidden = 64;
    c.rotary_dim = 12;
    c.tied_head = true;
    c.rope_scaling.kind = RopeScaling::Kind::longrope;
    c.rope_scaling.factor = 4;
    c.rope_scaling.original_context = 128;
    c.rope_scaling.attention_factor = 1.125f;
    c.rope_scaling.short_factors = {1, 1, 1, 1.25f, 1.5f, 2};
    c.rope_scaling.long_factors = {1, 1.5f, 3, 6, 11, 19};
  });
  to.add("granite", "GraniteForCausalLM", [](ModelConfig& c) {
    c.multipliers = {.embedding = 12, .residual = 0.25f, .attention = 0.125f, .logits_divisor = 8};
  });
  to.add("gemma3", "Gemma3ForCausalLM", [](ModelConfig& c) {
    tiny_gemma3(c);
    c.rope_scaling = {RopeScaling::Kind::linear, 8, 1, 4, 8192};
  });
  to.add("gemma3_text", "Gemma3ForConditionalGeneration", tiny_gemma3);
  to.add("smollm3", "SmolLM3ForCausalLM", [](ModelConfig& c) {
    c.layers = 4;
    c.head_dim = 16;
    c.layer_kinds = {{}, {.rotated = false}, {}, {.rotated = false}};
    c.tied_head = true;
  });
}

// Returns: models of further architectures and options, with contexts for long prompts.
inline std::vector<TinyModel> tiny_family_models() {
  TinyFamilies families;
  add_tiny_llamas(families);
  add_tiny_mistrals(families);
  add_tiny_qwens(families);
  add_tiny_mixtures(families);
  add_tiny_further_families(families);
  return families.take();
}

// Returns: models of the architectures that GGUF files have too, with the options of both.
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

// Returns: models of 131,072 positions. Their prompts are at the last of them
// (ModelRunner::Options::first_position).
inline std::vector<TinyModel> tiny_far_models() {
  std::vector<TinyModel> models;
  const auto add = [&](const char* name, const char* architecture, auto change) {
    TinyModel model{name, tiny_llama_config()};
    model.config.architecture = architecture;
    model.config.context = 131'072;
    model.config.head_dim = 64;
    model.config.rope_scaling.original_context = 8192;
    change(model.config);
    models.push_back(std::move(model));
  };
  add("far_llama31", "LlamaForCausalLM", [](ModelConfig& c) {
    c.rope_theta = 500'000;
    c.rope_scaling.kind = RopeScaling::Kind::llama3;
    c.rope_scaling.factor = 8;
  });
  add("far_yarn", "Qwen2ForCausalLM", [](ModelConfig& c) {
    c.rope_theta = 1e6f;
    c.rope_scaling.kind = RopeScaling::Kind::yarn;
    c.rope_scaling.factor = 4;
    c.rope_scaling.original_context = 32'768;
    c.rope_scaling.attention_factor = 1.138629436f;
  });
  add("far_ministral3", "Ministral3ForCausalLM", [](ModelConfig& c) {
    c.rope_theta = 1e6f;
    c.rope_scaling.kind = RopeScaling::Kind::yarn;
    c.rope_scaling.factor = 16;
    c.rope_scaling.query_growth = 0.1f;
  });
  add("far_linear", "LlamaForCausalLM", [](ModelConfig& c) {
    c.rope_scaling.kind = RopeScaling::Kind::linear;
    c.rope_scaling.factor = 16;
  });
  return models;
}

// Returns: models that cover every architecture and every config option at least once.
inline std::vector<TinyModel> all_tiny_models() {
  std::vector<TinyModel> models = tiny_models();
  for (TinyModel& model : tiny_family_models()) {
    models.push_back(std::move(model));
  }
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
