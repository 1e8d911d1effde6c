#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/aligned_memory.h"
#include "models/config.h"
#include "models/weights.h"

namespace tessera {

// Number of positions, from 0, over which a centre is the mean of a bias.
inline constexpr int64_t kCentredPositions = 8192;

// Key centres: for each layer and KV head, one vector that all keys share. The cache stores keys
// without it (KvStoreArgs::key_centre). A softmax over q . (k - c) is the softmax over q . k,
// because q . c is the same for all keys, so attention needs no term for it.
//
// A centre comes from the weights alone. It is the mean of the key bias as RoPE rotates it at the
// positions below kCentredPositions. Where RoPE turns a pair of channels once in many more tokens,
// the centre is nearly the bias. Where it turns often, the centre is nearly 0. The biases of Qwen2.5
// reach 450 in pairs that turn once in 80,000 tokens or more, where the rest of a key is about 5. A
// code of few bits for such a key spends its range on a number that is the same for every token.
class KeyCentres {
 public:
  // Errors: ResourceExhausted.
  static absl::StatusOr<KeyCentres> create(const ModelConfig& config, const WeightViews& weights,
                                           const Backend& backend, Stream stream);

  // Returns: the centres of a layer, [kv_heads * head_dim] in the backend's memory. Empty if the
  // layer's keys have no bias, or a norm behind it.
  std::span<const float> of(int32_t layer) const {
    return centres_.empty() ? centres_ : centres_.subspan(width_ * static_cast<size_t>(layer), width_);
  }
  int64_t bytes() const { return memory_.size(); }

 private:
  AlignedMemory memory_;
  std::span<const float> centres_;  // [layers, kv_heads * head_dim], or empty
  size_t width_ = 0;                // kv_heads * head_dim
};

// Returns: the mean of a head's bias over the first kCentredPositions positions, as RoPE rotates it.
// bias: [head_dim]
// frequencies: of the rotated pairs, in radians per token (rope_frequencies()); empty: none rotates
std::vector<float> mean_of_rotations(std::span<const float> bias,
                                     std::span<const double> frequencies, double attention_factor);

}  // namespace tessera
