#pragma once

#include <string>

#include "models/architectures/architecture.h"

namespace tessera {

// Tensors of one factor for each frequency of RoPE: Llama 3's, and both lists of longrope.
inline constexpr char kGgufRopeFactors[] = "rope_freqs.weight";
inline constexpr char kGgufShortFactors[] = "rope_factors_short.weight";
inline constexpr char kGgufLongFactors[] = "rope_factors_long.weight";

// Names of one tensor in a GGUF file and in a Hugging Face checkpoint, by the tensor table of the
// architecture: "blk.3.attn_q.weight" and "model.layers.3.self_attn.q_proj.weight". A tensor with
// all experts of a layer is "model.layers.3.mlp.experts.{expert}.up_proj.weight". Older files have
// a tensor for each expert, "blk.3.ffn_up.5.weight".
// Returns: the other name; the same name if the table does not have it.
std::string checkpoint_name(const std::string& gguf_name, const Architecture& architecture);
std::string gguf_name(const std::string& checkpoint_name, const Architecture& architecture);

// Returns: true for weights and biases of q and k, whose rows RoPE rotates in pairs.
bool is_rotated(const std::string& gguf_name);

// Returns: true for a matrix of one row, which files have as a vector.
bool is_one_row(const std::string& gguf_name);

// Returns: true for a tensor that read_gguf_config() reads: it is no weight.
bool belongs_to_config(const std::string& gguf_name);

}  // namespace tessera
