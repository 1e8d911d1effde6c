#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "models/config/model_config.h"

namespace tessera {

// One weight of the forward pass. Some slots stack several tensors of a checkpoint by rows: query,
// key and value share one product of the normed hidden state, and so do gate and up. (This is not a
// KV slot.)
enum class WeightSlot : uint8_t {
  embedding,
  attention_norm,
  qkv,
  qkv_bias,
  query_norm,
  key_norm,
  attention_out,
  attention_out_bias,
  norm_behind_attention,
  ffn_norm,
  router,
  gate_up,
  gate_up_bias,
  down,
  down_bias,
  shared_gate_up,
  shared_down,
  norm_behind_ffn,
  final_norm,
  head
};

// The dimension in which ranks split a tensor (models/config/shard.h); none: replicated.
enum class ShardAxis : uint8_t { none, rows, cols };

// A tensor of a Hugging Face directory that holds several others: those of all experts of a layer,
// [experts, rows, cols], or of none, [rows, cols]. The rows of each expert are `parts` equal ones.
struct StackedTensor {
  const char* pattern = nullptr;  // its name, without "{expert}"; null: none
  int32_t part = 0;
  int32_t parts = 1;
};

// One line of an architecture's tensor table, which is shared by loading, checking, memory
// estimates and random checkpoints.
struct TensorRule {
  // The tensor's name. "{layer}" and "{expert}" are indices. Without "{layer}" there is one tensor
  // in the model, and without "{expert}" one in the layer.
  const char* pattern;
  // The name in a GGUF file, without "{expert}": one tensor there has all experts of a layer, of
  // [experts, rows, cols]. Null: GGUF files have no such model.
  const char* gguf_pattern;
  WeightSlot slot;  // tensors of one slot follow each other, and are stacked in that order
  int64_t (*rows)(const ModelConfig&);
  int64_t (*cols)(const ModelConfig&);  // null: the tensor is a vector
  ShardAxis split;
  bool (*present)(const ModelConfig&);  // null: always
  // Both are for a part of a stored tensor, such as q of a fused qkv: all rows of the tensor, and
  // the part's first one. Null: the tensor is the part.
  int64_t (*stored_rows)(const ModelConfig&) = nullptr;
  int64_t (*first_row)(const ModelConfig&) = nullptr;
  // The stored w of a norm that multiplies by 1 + w. GGUF files have the sum.
  bool plus_one = false;
  // Where a Hugging Face directory has the tensor, if not under the name `pattern`.
  StackedTensor stacked = {};
};

// Tensor tables are made of parts, one for each block of the decoder.
template <size_t kFirst, size_t kSecond>
constexpr std::array<TensorRule, kFirst + kSecond> joined(
    const std::array<TensorRule, kFirst>& first, const std::array<TensorRule, kSecond>& second) {
  std::array<TensorRule, kFirst + kSecond> all{};
  for (size_t i = 0; i < kFirst; ++i) {
    all[i] = first[i];
  }
  for (size_t i = 0; i < kSecond; ++i) {
    all[kFirst + i] = second[i];
  }
  return all;
}

}  // namespace tessera
