#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "files/safetensors.h"
#include "models/checkpoint/checkpoint.h"
#include "models/config/model_config.h"
#include "models/gguf/tensor_names.h"
#include "models/weights/tensor_table.h"
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

// Metadata and tensors that llama.cpp's converter writes for RoPE.
inline void add_rope(const ModelConfig& config, const std::string& name, GgufBytes& bytes) {
  const RopeScaling& scaling = config.rope_scaling;
  const std::string rope = name + ".rope.";
  bytes.f32(rope + "freq_base", config.rope_theta);
  bytes.u32(rope + "dimension_count", static_cast<uint32_t>(config.rotary_width()));
  const auto factors = [&](const char* tensor, const std::vector<float>& numbers) {
    std::string raw;
    for (const float number : numbers) put_number(raw, number);
    bytes.tensor(tensor, {numbers.size()}, 0, raw);
  };
  switch (scaling.kind) {
    case RopeScaling::Kind::linear:
      bytes.text(rope + "scaling.type", "linear");
      bytes.f32(rope + "scaling.factor", scaling.factor);
      break;
    case RopeScaling::Kind::yarn:
      bytes.text(rope + "scaling.type", "yarn");
      bytes.f32(rope + "scaling.factor", scaling.factor);
      bytes.f32(rope + "scaling.yarn_attn_factor", scaling.attention_factor);
      bytes.u32(rope + "scaling.original_context_length",
                static_cast<uint32_t>(scaling.original_context));
      break;
    case RopeScaling::Kind::longrope:  // phi3's files have no key of its type
      bytes.f32(rope + "scaling.attn_factor", scaling.attention_factor);
      bytes.u32(rope + "scaling.original_context_length",
                static_cast<uint32_t>(scaling.original_context));
      factors("rope_factors_short.weight", scaling.short_factors);
      factors("rope_factors_long.weight", scaling.long_factors);
      break;
    default:
      break;
  }
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
  if (config.experts > 0) {
    u32("expert_count", config.experts);
    u32("expert_used_count", config.chosen_experts);
    if (config.shared_gate) u32("expert_feed_forward_length", config.ffn);
    if (config.shared_ffn > 0) u32("expert_shared_feed_forward_length", config.shared_ffn);
  }
  bytes.f32(name + ".attention.layer_norm_rms_epsilon", config.norm_epsilon);
  add_rope(config, name, bytes);
  if (config.rope_scaling.query_growth > 0) {
    bytes.f32(name + ".attention.temperature_scale", config.rope_scaling.query_growth);
  }
  if (architecture_of(config).gguf.multipliers) {
    bytes.f32(name + ".embedding_scale", config.multipliers.embedding);
    bytes.f32(name + ".residual_scale", config.multipliers.residual);
    bytes.f32(name + ".attention.scale", config.multipliers.attention);
    bytes.f32(name + ".logit_scale", config.multipliers.logits_divisor);
  }
  bytes.u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(config.eos_ids.front()));
  return bytes;
}

// "blk.3.ffn_up.5.weight" of "blk.3.ffn_up_exps.weight" and a name with "experts.5."
inline std::string old_expert_name(std::string stacked, const std::string& name) {
  const size_t number = name.find(".experts.") + std::string(".experts.").size();
  const std::string expert = name.substr(number, name.find('.', number) - number);
  return stacked.replace(stacked.find("_exps."), std::string("_exps.").size(), "." + expert + ".");
}

// A norm of f32 as the file has it: 1 + w.
inline std::string with_one_added(std::string bytes) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    float weight = 0;
    std::memcpy(&weight, bytes.data() + at, sizeof(float));
    weight += 1;
    std::memcpy(bytes.data() + at, &weight, sizeof(float));
  }
  return bytes;
}

enum class GgufExperts : uint8_t { stacked, one_by_one };

// Adds the tensors of a Hugging Face directory. All experts of a layer are one tensor, or each has
// its own as in files of before April 2024.
inline void add_tensors(const ModelConfig& config, const std::filesystem::path& directory,
                        GgufBytes& bytes, GgufExperts experts = GgufExperts::stacked) {
  const Architecture& architecture = architecture_of(config);
  const Checkpoint checkpoint = Checkpoint::open(directory).value();
  std::map<std::string, NamedTensor> stacks;  // experts of a layer, one after the other
  std::set<std::string> seen;                 // a fused or tied tensor has several places
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    if (!seen.insert(expected.name).second) continue;
    const StoredTensor& tensor = *checkpoint.tensor(expected.name, expected.shape).value();
    const std::string own = gguf_name(expected.name, architecture);
    const bool expert = expected.index.expert != TensorIndex::kNone;
    if (expert && experts == GgufExperts::stacked) {
      NamedTensor& stack = stacks[own];
      stack.type = tensor.type;
      stack.shape = {config.experts, tensor.shape[0], tensor.shape[1]};
      stack.bytes.insert(stack.bytes.end(), tensor.bytes.begin(), tensor.bytes.end());
      continue;
    }
    std::string stored(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    if (expected.plus_one) stored = with_one_added(std::move(stored));
    if (architecture.gguf.interleaves_heads && is_rotated(own)) {
      stored = paired_rows(stored, tensor.shape[0], config.head_dim);
    }
    std::vector<uint64_t> shape(tensor.shape.rbegin(), tensor.shape.rend());
    if (is_one_row(own)) shape.pop_back();
    bytes.tensor(expert ? old_expert_name(own, expected.name) : own, shape,
                 gguf_number(tensor.type), stored);
  }
  for (const auto& [own, stack] : stacks) {
    bytes.tensor(own, std::vector<uint64_t>(stack.shape.rbegin(), stack.shape.rend()),
                 gguf_number(stack.type),
                 {reinterpret_cast<const char*>(stack.bytes.data()), stack.bytes.size()});
  }
}

}  // namespace tessera
