#include "models/weights/key_frames.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <complex>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/status_macros.h"
#include "models/config/rope_table.h"
#include "models/weights/slot_reader.h"
#include "models/weights/tensor_table.h"

namespace tessera {
namespace {

// Returns: the mean of e^(i * frequency * position) over positions [0, count).
std::complex<double> mean_rotation(double frequency, int64_t count) {
  const auto n = static_cast<double>(count);
  const double half = frequency / 2;
  const double size = std::abs(half) < 1e-12 ? 1 : std::sin(n * half) / (n * std::sin(half));
  return std::polar(size, (n - 1) * half);
}

std::vector<float> centre_of(std::span<const float> bias, const KeyRotation& rotation) {
  const std::span<const double> frequencies = rotation.frequencies;
  std::vector<float> centre(bias.begin(), bias.end());
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const size_t other = i + frequencies.size();
    const std::complex<double> mean = std::complex<double>(bias[i], bias[other]) *
                                      mean_rotation(frequencies[i], rotation.positions) *
                                      rotation.attention_factor;
    centre[i] = static_cast<float>(mean.real());
    centre[other] = static_cast<float>(mean.imag());
  }
  return centre;
}

// Mean squares of the channels that share a scale: of a rotated pair, or of one channel.
struct SharedScale {
  size_t first;
  size_t second;
  double ratio;  // |query| / |key|; 0: one of them is 0
};

std::vector<SharedScale> shared_scales(const HeadChannels& head, std::span<const float> centre,
                                       size_t pairs) {
  // A bias turns at a constant distance from 0. The distance from its mean is the rest.
  const auto key_square = [&](size_t c) {
    return head.keys[c] + double{head.bias[c]} * head.bias[c] - double{centre[c]} * centre[c];
  };
  std::vector<SharedScale> shared;
  const auto add = [&](size_t first, size_t second) {
    const double key = std::max(key_square(first) + key_square(second), 0.0);
    const double query = head.queries[first] + head.queries[second];
    shared.push_back({first, second, key > 0 ? std::sqrt(query / key) : 0});
  };
  for (size_t i = 0; i < pairs; ++i) {
    add(i, i + pairs);
  }
  for (size_t c = 2 * pairs; c < centre.size(); ++c) {
    add(c, c);
  }
  return shared;
}

double median_ratio(const std::vector<SharedScale>& shared) {
  std::vector<double> ratios;
  for (const SharedScale& scale : shared) {
    if (scale.ratio > 0) ratios.push_back(scale.ratio);
  }
  if (ratios.empty()) return 1;
  const auto middle = ratios.begin() + std::ssize(ratios) / 2;
  std::nth_element(ratios.begin(), middle, ratios.end());
  return *middle;
}

// Returns: the power of two. Scales of 2 and 1/2 would gain little, so most models have none.
float power_of(double scale) {
  const double exponent =
      std::clamp(std::log2(scale), -double{kMaxKeyExponent}, double{kMaxKeyExponent});
  return std::exp2(static_cast<float>(std::trunc(exponent)));
}

// Returns: the sum of the squares of row * norm.
double weighted_square(std::span<const float> row, std::span<const float> norm) {
  constexpr size_t kSums = 8;  // one would wait for each of its additions
  std::array<double, kSums> sums{};
  const auto add = [&](size_t c, size_t sum) {
    const float weight = row[c] * norm[c];
    sums[sum] += double{weight} * weight;
  };
  const size_t whole = row.size() / kSums * kSums;
  for (size_t c = 0; c < whole; c += kSums) {
    for (size_t i = 0; i < kSums; ++i) add(c + i, i);
  }
  for (size_t c = whole; c < row.size(); ++c) add(c, 0);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Rows of each slot, by layer.
using Parts = std::map<std::pair<int32_t, WeightSlot>, std::vector<SlotPart>>;

// Reads one layer's channels.
class LayerChannels {
 public:
  LayerChannels(const ModelConfig& own, const Parts& parts, const Checkpoint& checkpoint,
                int32_t layer)
      : own_(own), parts_(parts), reader_(checkpoint), layer_(layer) {}

  // Returns: the KV heads.
  absl::StatusOr<std::vector<HeadChannels>> read() {
    const int64_t queries = own_.query_width();
    const int64_t keys = own_.kv_width();
    std::vector<double> squares;
    std::vector<float> bias(static_cast<size_t>(keys), 0.0f);
    if (parts_.contains({layer_, WeightSlot::key_norm})) {
      TESSERA_ASSIGN_OR_RETURN(squares, squares_behind_norms());
    } else {
      TESSERA_ASSIGN_OR_RETURN(squares, squares_of_rows());
      if (parts_.contains({layer_, WeightSlot::qkv_bias})) {
        TESSERA_ASSIGN_OR_RETURN(const std::vector<float> all,
                                 vector(WeightSlot::qkv_bias, queries + keys));
        for (int64_t row = 0; row < queries; ++row) {
          squares[at(row)] += double{all[at(row)]} * all[at(row)];
        }
        std::copy(all.begin() + queries, all.end(), bias.begin());
      }
    }
    return by_head(squares, bias);
  }

 private:
  static size_t at(int64_t row) { return static_cast<size_t>(row); }

  absl::StatusOr<std::vector<float>> vector(WeightSlot slot, int64_t rows) {
    TESSERA_ASSIGN_OR_RETURN(const MatrixView<const float> read,
                             reader_.floats(parts_.at({layer_, slot}), 0, rows));
    return std::vector<float>(read.data, read.data + rows);
  }

  // A norm of each head leaves mean squares of 1, times its weights.
  absl::StatusOr<std::vector<double>> squares_behind_norms() {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<float> query,
                             vector(WeightSlot::query_norm, own_.head_dim));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<float> key,
                             vector(WeightSlot::key_norm, own_.head_dim));
    std::vector<double> squares;
    for (int32_t head = 0; head < own_.heads + own_.kv_heads; ++head) {
      for (const float weight : head < own_.heads ? query : key) {
        squares.push_back(double{weight} * weight);
      }
    }
    return squares;
  }

  // The inputs of a product are taken as independent, of mean square 1 times the norm's weights.
  absl::StatusOr<std::vector<double>> squares_of_rows() {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<float> norm,
                             vector(WeightSlot::attention_norm, own_.hidden));
    const std::vector<SlotPart>& parts = parts_.at({layer_, WeightSlot::qkv});
    const int64_t rows = own_.query_width() + own_.kv_width();
    std::vector<double> squares;
    for (int64_t row = 0; row < rows; row += own_.head_dim) {
      TESSERA_ASSIGN_OR_RETURN(const MatrixView<const float> head,
                               reader_.floats(parts, row, own_.head_dim));
      for (int64_t i = 0; i < head.rows; ++i) {
        squares.push_back(weighted_square(head.row(i), norm));
      }
    }
    return squares;
  }

  // squares: [query_width + kv_width]; bias: [kv_width]
  std::vector<HeadChannels> by_head(const std::vector<double>& squares,
                                    const std::vector<float>& bias) const {
    const int32_t group = own_.heads / own_.kv_heads;
    const auto dim = at(own_.head_dim);
    std::vector<HeadChannels> heads;
    for (int32_t head = 0; head < own_.kv_heads; ++head) {
      HeadChannels& channels = heads.emplace_back();
      channels.queries.resize(dim);
      for (int32_t query = head * group; query < (head + 1) * group; ++query) {
        for (size_t c = 0; c < dim; ++c) {
          channels.queries[c] += squares[at(query) * dim + c] / group;
        }
      }
      const auto keys = squares.begin() + own_.query_width() + int64_t{head} * own_.head_dim;
      channels.keys.assign(keys, keys + own_.head_dim);
      const auto biases = bias.begin() + int64_t{head} * own_.head_dim;
      channels.bias.assign(biases, biases + own_.head_dim);
    }
    return heads;
  }

  const ModelConfig& own_;  // of one rank
  const Parts& parts_;
  SlotReader reader_;
  const int32_t layer_;
};

// A layer's frame on the host: [kv_heads * head_dim] each.
struct LayerFrame {
  std::vector<float> centre;
  std::vector<float> scale;

  bool changes_keys() const {
    return std::any_of(centre.begin(), centre.end(), [](float c) { return c != 0; }) ||
           std::any_of(scale.begin(), scale.end(), [](float s) { return s != 1; });
  }
};

LayerFrame layer_frame(const std::vector<HeadChannels>& heads, const KeyRotation& rotation) {
  LayerFrame layer;
  for (const HeadChannels& head : heads) {
    const HeadFrame frame = frame_of(head, rotation);
    layer.centre.insert(layer.centre.end(), frame.centre.begin(), frame.centre.end());
    layer.scale.insert(layer.scale.end(), frame.scale.begin(), frame.scale.end());
  }
  return layer;
}

absl::StatusOr<Parts> parts_of(const Checkpoint& checkpoint,
                               const std::vector<ExpectedTensor>& expected) {
  constexpr WeightSlot kRead[] = {WeightSlot::attention_norm, WeightSlot::qkv, WeightSlot::qkv_bias,
                                  WeightSlot::query_norm, WeightSlot::key_norm};
  Parts parts;
  for (const ExpectedTensor& tensor : expected) {
    if (std::find(std::begin(kRead), std::end(kRead), tensor.slot) == std::end(kRead)) continue;
    TESSERA_ASSIGN_OR_RETURN(const StoredTensor* stored,
                             checkpoint.tensor(tensor.name, tensor.shape));
    parts[{tensor.index.layer, tensor.slot}].push_back({stored, &tensor});
  }
  return parts;
}

// Computes the frames of all layers.
class FrameReader {
 public:
  FrameReader(const ModelConfig& own, const Parts& parts, const Checkpoint& checkpoint)
      : own_(own),
        parts_(parts),
        checkpoint_(checkpoint),
        frequencies_(rope_frequencies(own, own.context)),
        frames_(static_cast<size_t>(own.layers)) {}

  absl::StatusOr<std::vector<LayerFrame>> read(int32_t threads) {
    std::vector<std::jthread> others;
    for (int32_t i = 1; i < threads; ++i) {
      others.emplace_back([this] { work(); });
    }
    work();
    others.clear();  // joins
    if (!status_.ok()) return status_;
    return std::move(frames_);
  }

 private:
  void work() {
    for (int32_t layer = next_++; layer < own_.layers; layer = next_++) {
      const absl::StatusOr<std::vector<HeadChannels>> heads =
          LayerChannels(own_, parts_, checkpoint_, layer).read();
      if (!heads.ok()) {
        const std::lock_guard lock(mutex_);
        status_.Update(heads.status());
        return;
      }
      const KeyRotation rotation{.frequencies = own_.rotates(layer)
                                                    ? std::span<const double>(frequencies_)
                                                    : std::span<const double>(),
                                 .attention_factor = double{own_.rope_scaling.attention_factor},
                                 .positions = std::min<int64_t>(own_.context, kCentredPositions)};
      frames_[static_cast<size_t>(layer)] = layer_frame(*heads, rotation);
    }
  }

  const ModelConfig& own_;
  const Parts& parts_;
  const Checkpoint& checkpoint_;
  const std::vector<double> frequencies_;
  std::vector<LayerFrame> frames_;
  std::atomic<int32_t> next_ = 0;
  std::mutex mutex_;  // guards status_
  absl::Status status_;
};

}  // namespace

HeadFrame frame_of(const HeadChannels& head, const KeyRotation& rotation) {
  HeadFrame frame{centre_of(head.bias, rotation), std::vector<float>(head.bias.size(), 1.0f)};
  const std::vector<SharedScale> shared =
      shared_scales(head, frame.centre, rotation.frequencies.size());
  const double median = median_ratio(shared);
  for (const SharedScale& scale : shared) {
    if (scale.ratio > 0) {
      frame.scale[scale.first] = frame.scale[scale.second] =
          power_of(std::sqrt(scale.ratio / median));
    }
  }
  return frame;
}

absl::StatusOr<KeyFrames> KeyFrames::create(const ModelConfig& model, Shard shard,
                                            const Checkpoint& checkpoint, const Backend& backend,
                                            int32_t threads) {
  const std::vector<ExpectedTensor> expected = expected_tensors(model, shard);
  TESSERA_ASSIGN_OR_RETURN(const Parts parts, parts_of(checkpoint, expected));
  const ModelConfig own = shard_config(model, shard.ranks);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<LayerFrame> frames,
                           FrameReader(own, parts, checkpoint).read(threads));
  KeyFrames made;
  if (std::none_of(frames.begin(), frames.end(),
                   [](const LayerFrame& frame) { return frame.changes_keys(); })) {
    return made;
  }
  const auto width = static_cast<size_t>(own.kv_width());
  TESSERA_ASSIGN_OR_RETURN(
      made.memory_, AlignedMemory::allocate(
                        static_cast<int64_t>(2 * frames.size() * width * sizeof(float)), backend));
  auto* to = reinterpret_cast<float*>(made.memory_.data());
  for (const LayerFrame& frame : frames) {
    put(backend, std::span<const float>(frame.centre), to);
    put(backend, std::span<const float>(frame.scale), to + width);
    made.layers_.push_back(frame.changes_keys()
                               ? KeyFrame{.centre = {to, width}, .scale = {to + width, width}}
                               : KeyFrame{});
    to += 2 * width;
  }
  return made;
}

}  // namespace tessera
