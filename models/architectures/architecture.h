#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "models/architectures/decoder_blocks.h"
#include "models/architectures/tensor_rule.h"

namespace tessera {

class JsonFields;

// Effect of the field sliding_window.
enum class SlidingWindowRule : uint8_t {
  never,              // none
  field,              // used in all layers
  switched,           // use_sliding_window must be false
  switched_by_layer,  // used with use_sliding_window, in some layers: layer_types, or those from
                      // max_window_layers on
  by_layer            // used in the layers of layer_types
};

// Differences in how config.json is read. The defaults are those of transformers for a config
// without the field.
struct ConfigRules {
  static constexpr int32_t kAsManyAsHeads = 0;
  static constexpr int32_t kHiddenOverHeads = 0;

  int32_t default_kv_heads = kAsManyAsHeads;
  int32_t default_head_dim = kHiddenOverHeads;
  SlidingWindowRule sliding_window = SlidingWindowRule::never;
  int32_t default_sliding_window = 0;  // 0: none
  float default_rope_theta = 10000;
  bool default_tied_head = false;
  // The object that has the fields of the language model, beside those of an image encoder. Null:
  // config.json itself.
  const char* text_config = nullptr;
  std::span<const char* const> text_types = {};  // model_type of that object; the first is written
  bool attention_bias = false;                   // knows the field attention_bias
  bool mlp_bias = false;                         // knows the field mlp_bias
  bool partial_rotary = false;                   // knows the field partial_rotary_factor
  bool local_rope = false;                       // windowed layers have a RoPE of their own
  const char* activation = "hidden_act";         // the field's name
  Activation default_activation = Activation::silu;  // GGUF files have no key for it
  // Reads the fields that this architecture alone has. Null: none.
  void (*read_own_fields)(JsonFields&, ModelConfig&) = nullptr;
};

// The architecture in GGUF files.
struct GgufRules {
  const char* name = nullptr;      // in the key general.architecture; null: none
  bool interleaves_heads = false;  // rows of q and k: see StoredTensor::interleaved_rows
  bool experts = false;            // the key expert_count is there
  bool multipliers = false;        // knows the keys of Granite's factors
  bool query_growth = false;       // knows the key attention.temperature_scale
  bool shared_expert = false;      // knows the key expert_shared_feed_forward_length
  // The weights of a token's experts are their shares of all, unless a key says otherwise. Old
  // files have no keys for the widths: feed_forward_length is that of the shared expert, and of all
  // chosen ones together.
  bool qwen2_mixture = false;
  // Each layer of that number, counted from 1, has no RoPE, or no window. Files have no keys for
  // these. 0: none.
  int32_t unrotated_every = 0;
  int32_t unwindowed_every = 0;
};

// One line of the table of architectures: everything in which a decoder differs from the others.
struct Architecture {
  const char* name;  // in the field architectures of config.json
  AttentionBlock* attention;
  FeedForwardBlock* feed_forward;
  std::span<const TensorRule> tensors;
  ConfigRules config;
  GgufRules gguf;
  const char* prefix = "";  // of every tensor's name in a Hugging Face directory
  // Beginnings of the names of tensors that are not read, such as an image encoder's.
  std::span<const char* const> ignored = {};
  // Sets the numbers that follow from those of config.json or a GGUF file. Null: none.
  void (*derive)(ModelConfig&) = nullptr;
};

// Returns: the architectures that this engine supports.
std::span<const Architecture> supported_architectures();

// Returns: the architecture of that name, not owned; null if it is not supported.
const Architecture* find_architecture(std::string_view name);

// Parts of a model that tell architectures of one GGUF name apart.
struct GgufParts {
  bool experts = false;
  bool sliding_window = false;
  bool shared_expert = false;
};

// Returns: the architecture that GGUF files call `name`. "llama" is Llama, or Mixtral if there are
// experts, or else Mistral if there is a sliding window. "granitemoe" may have a shared expert. Not
// owned; null if it is not supported.
const Architecture* find_gguf_architecture(std::string_view name, const GgufParts& parts);

// Requires: config.architecture is supported, as in every config that parse_model_config returns.
const Architecture& architecture_of(const ModelConfig& config);

}  // namespace tessera
