#include "models/rope_table.h"

#include <cmath>
#include <numbers>

namespace tessera {
namespace {

double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double low = scaling.low_freq_factor;
  const double high = scaling.high_freq_factor;
  const double turns = scaling.original_context * frequency / (2 * std::numbers::pi);
  if (turns > high) {
    return frequency;
  }
  if (turns < low) {
    return frequency / scaling.factor;
  }
  const double smooth = (turns - low) / (high - low);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

double scaled_frequency(double frequency, size_t pair, const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return frequency;
    case RopeScaling::Kind::linear:
      return frequency / scaling.factor;
    case RopeScaling::Kind::llama3:
      return llama3_frequency(frequency, scaling);
    case RopeScaling::Kind::factors:
      return frequency / static_cast<double>(scaling.factors.at(pair));
  }
  return frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& config) {
  std::vector<double> frequencies;
  for (int32_t pair = 0; pair < config.head_dim / 2; ++pair) {
    const double exponent = -2.0 * pair / config.head_dim;
    const double frequency = std::pow(static_cast<double>(config.rope_theta), exponent);
    frequencies.push_back(
        scaled_frequency(frequency, static_cast<size_t>(pair), config.rope_scaling));
  }
  return frequencies;
}

void fill_rope_table(const ModelConfig& config, MatrixView<float> cos, MatrixView<float> sin) {
  const std::vector<double> frequencies = rope_frequencies(config);
  for (int64_t position = 0; position < cos.rows; ++position) {
    for (size_t pair = 0; pair < frequencies.size(); ++pair) {
      const double angle = static_cast<double>(position) * frequencies[pair];
      cos.row(position)[pair] = static_cast<float>(std::cos(angle));
      sin.row(position)[pair] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace tessera
