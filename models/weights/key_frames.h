#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/checkpoint/checkpoint.h"
#include "models/config/model_config.h"
#include "models/config/shard.h"
#include "models/weights/aligned_memory.h"

namespace tessera {

// Positions, from 0 on, over which a key centre is the mean of a rotated bias; fewer if the model's
// context has fewer.
inline constexpr int64_t kCentredPositions = 4096;

// A pair of channels is scaled by at most 2 to this power, up or down.
inline constexpr int32_t kMaxKeyExponent = 8;

// One head's channels as its weights describe them: [head_dim] each.
struct HeadChannels {
  std::vector<double> queries;  // mean square, over the query heads of the KV head
  std::vector<double> keys;     // mean square without the bias
  std::vector<float> bias;      // of the keys
};

// Rotation of a layer's keys.
struct KeyRotation {
  // Frequencies of the rotated pairs (i, i + size), in radians per token (rope_frequencies()).
  // Empty: the layer has no RoPE.
  std::span<const double> frequencies = {};
  double attention_factor = 1;  // of the tables of RoPE
  int64_t positions = kCentredPositions;
};

// A head's key frame: [head_dim] each.
struct HeadFrame {
  std::vector<float> centre;
  std::vector<float> scale;  // powers of two
};

// Returns: the frame in which a head's keys are stored as (key - centre) * scale, after RoPE.
//
// Centre: the mean of the bias as RoPE rotates it. It is nearly the bias in pairs of channels that
// turn once in many more than kCentredPositions tokens, and nearly 0 in pairs that turn often.
// Softmax does not see a vector that all keys share.
//
// Scale: |key| and |query| of each pair become alike, relative to the head's median pair. That is
// where the products of rounding errors and queries are smallest in sum (Cauchy-Schwarz). The two
// channels of a pair have one scale, so it commutes with RoPE. Products of queries and keys keep
// their bits, because scales are powers of two.
//
HeadFrame frame_of(const HeadChannels& head, const KeyRotation& rotation);

// The key frames of a model, from its weights alone (KvStoreArgs::frame).
//
// Why: biases of Qwen2.5's keys reach 450 in pairs that turn once in 80,000 tokens or more, where
// the rest of a key is about 5. A code of few bits would spend its range on numbers that are the
// same for every token, and a rotation would spread their errors over all channels.
class KeyFrames {
 public:
  // Reads the rows of queries and keys, on `threads` threads. `model`: the whole model's config.
  // Errors: those of Checkpoint::tensor and SlotReader; ResourceExhausted.
  static absl::StatusOr<KeyFrames> create(const ModelConfig& model, Shard shard,
                                          const Checkpoint& checkpoint, const Backend& backend,
                                          int32_t threads);

  // Returns: the frame of a layer, in the backend's memory. Without data if its keys are stored as
  // they are.
  KeyFrame of(int32_t layer) const {
    return layers_.empty() ? KeyFrame{} : layers_[static_cast<size_t>(layer)];
  }

 private:
  AlignedMemory memory_;
  std::vector<KeyFrame> layers_;
};

}  // namespace tessera
