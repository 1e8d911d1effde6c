#include "models/key_centres.h"

#include <algorithm>
#include <complex>
#include <cstdlib>
#include <vector>

#include "models/rope_table.h"
#include "models/status_macros.h"

namespace tessera {
namespace {

// Returns: the mean of e^(i * frequency * position) over positions [0, count).
std::complex<double> mean_rotation(double frequency, int64_t count) {
  const auto n = static_cast<double>(count);
  const double half = frequency / 2;
  const double size = std::abs(half) < 1e-12 ? 1 : std::sin(n * half) / (n * std::sin(half));
  return std::polar(size, (n - 1) * half);
}

// Returns: a copy in host memory.
std::vector<float> on_host(std::span<const float> numbers, const Backend& backend, Stream stream) {
  std::vector<float> copy(numbers.size());
  if (backend.memory == nullptr) {
    std::copy(numbers.begin(), numbers.end(), copy.begin());
  } else {
    backend.memory->download(copy.data(), numbers.data(), static_cast<int64_t>(numbers.size_bytes()),
                             stream);
  }
  return copy;
}

bool is_centred(const LayerWeights& layer) {
  return !layer.qkv_bias.empty() && layer.key_norm.empty();
}

}  // namespace

std::vector<float> mean_of_rotations(std::span<const float> bias,
                                     std::span<const double> frequencies, double attention_factor) {
  std::vector<float> mean(bias.begin(), bias.end());
  static const int64_t n = getenv("CENTRE_N") ? atoll(getenv("CENTRE_N")) : kCentredPositions;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const size_t other = i + frequencies.size();
    const std::complex<double> pair(bias[i], bias[other]);
    const std::complex<double> turned =
        pair * mean_rotation(frequencies[i], n) * attention_factor;
    mean[i] = static_cast<float>(turned.real());
    mean[other] = static_cast<float>(turned.imag());
  }
  return mean;
}

absl::StatusOr<KeyCentres> KeyCentres::create(const ModelConfig& config, const WeightViews& weights,
                                              const Backend& backend, Stream stream) {
  KeyCentres made;
  if (std::none_of(weights.layers.begin(), weights.layers.end(), is_centred)) return made;
  if (getenv("CENTRE_N") && atoll(getenv("CENTRE_N")) == 0) return made;
  made.width_ = static_cast<size_t>(config.kv_width());
  const std::vector<double> frequencies = rope_frequencies(config, config.context);
  std::vector<float> centres;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const LayerWeights& of_layer = weights.layers[static_cast<size_t>(layer)];
    if (!is_centred(of_layer)) {
      centres.resize(centres.size() + made.width_);
      continue;
    }
    const std::vector<float> bias = on_host(
        of_layer.qkv_bias.subspan(static_cast<size_t>(config.query_width()), made.width_), backend,
        stream);
    for (int32_t head = 0; head < config.kv_heads; ++head) {
      const auto of_head = std::span(bias).subspan(static_cast<size_t>(head * config.head_dim),
                                                   static_cast<size_t>(config.head_dim));
      const std::vector<float> mean = mean_of_rotations(
          of_head, config.rotates(layer) ? std::span(frequencies) : std::span<const double>(),
          config.rope_scaling.attention_factor);
      centres.insert(centres.end(), mean.begin(), mean.end());
    }
  }
  const auto bytes = static_cast<int64_t>(centres.size() * sizeof(float));
  TESSERA_ASSIGN_OR_RETURN(made.memory_, AlignedMemory::allocate(bytes, backend));
  auto* to = reinterpret_cast<float*>(made.memory_.data());
  put(backend, std::span<const float>(centres), to);
  made.centres_ = {to, centres.size()};
  return made;
}

}  // namespace tessera
