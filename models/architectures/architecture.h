#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "models/architectures/tensor_rule.h"
#include "models/attention_block.h"
#include "models/feed_forward.h"

namespace tessera {

// Effect of the field sliding_window: ignored, always used, or used only with use_sliding_window.
enum class SlidingWindowRule : uint8_t { never, field, switched };

// Differences in how config.json is read. The defaults are those of transformers for a config
// without the field.
struct ConfigRules {
  static constexpr int32_t kAsManyAsHeads = 0;
  static constexpr int32_t kHiddenOverHeads = 0;

  int32_t default_kv_heads = kAsManyAsHeads;
  int32_t default_head_dim = kHiddenOverHeads;
  SlidingWindowRule sliding_window = SlidingWindowRule::never;
  int32_t default_sliding_window = 0;  // 0: none
};

// The architecture in GGUF files.
struct GgufRules {
  const char* name = nullptr;      // in the key general.architecture; null: none
  bool interleaves_heads = false;  // rows of q and k: see StoredTensor::interleaved_rows
};

// One line of the table of architectures: everything in which a decoder differs from the others.
struct Architecture {
  const char* name;  // in the field architectures of config.json
  AttentionBlock* attention;
  FeedForwardBlock* feed_forward;
  std::span<const TensorRule> tensors;
  ConfigRules config;
  GgufRules gguf;
};

// Returns: the architectures that this engine supports.
std::span<const Architecture> supported_architectures();

// Returns: the architecture of that name, not owned; null if it is not supported.
const Architecture* find_architecture(std::string_view name);

// Returns: the architecture that GGUF files call `name`. "llama" is Llama, or Mistral if there is a
// sliding window. Not owned; null if it is not supported.
const Architecture* find_gguf_architecture(std::string_view name, bool sliding_window);

// Requires: config.architecture is supported, as in every config that parse_model_config returns.
const Architecture& architecture_of(const ModelConfig& config);

}  // namespace tessera
