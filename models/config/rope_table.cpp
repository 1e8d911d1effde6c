#include "models/config/rope_table.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>
#include <span>
#include <thread>

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

// The pairs between which YaRN interpolates.
struct YarnRamp {
  double first = 0;
  double last = 0;

  explicit YarnRamp(const ModelConfig& config) {
    const RopeScaling& scaling = config.rope_scaling;
    const auto pair_of_turns = [&](double turns) {
      const double wavelength = scaling.original_context / (turns * 2 * std::numbers::pi);
      return config.rotary_width() * std::log(wavelength) /
             (2 * std::log(static_cast<double>(config.rope_theta)));
    };
    first = pair_of_turns(scaling.beta_fast);
    last = pair_of_turns(scaling.beta_slow);
    if (scaling.whole_pairs) {
      first = std::floor(first);
      last = std::ceil(last);
    }
    first = std::max(first, 0.0);
    last = std::min(last, static_cast<double>(config.rotary_width() - 1));
    if (first == last) last += 0.001;
  }

  // Returns: 0 for a pair that keeps its frequency, to 1 for one that is divided by the factor.
  double at(size_t pair) const {
    return std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
  }
};

double yarn_frequency(double frequency, size_t pair, const ModelConfig& config) {
  const double divided = YarnRamp(config).at(pair);
  return frequency * (1 - divided) + frequency / config.rope_scaling.factor * divided;
}

double scaled_frequency(double frequency, size_t pair, const ModelConfig& config, int64_t context) {
  const RopeScaling& scaling = config.rope_scaling;
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
    case RopeScaling::Kind::dynamic:
      return frequency;
    case RopeScaling::Kind::linear:
      return frequency / scaling.factor;
    case RopeScaling::Kind::llama3:
      return llama3_frequency(frequency, scaling);
    case RopeScaling::Kind::yarn:
      return yarn_frequency(frequency, pair, config);
    case RopeScaling::Kind::longrope:
      return frequency /
             static_cast<double>(
                 (context > scaling.original_context ? scaling.long_factors : scaling.short_factors)
                     .at(pair));
    case RopeScaling::Kind::factors:
      return frequency / static_cast<double>(scaling.factors.at(pair));
  }
  return frequency;
}

// Returns: the factor of a position's cosines and sines.
double size_at(int64_t position, const RopeScaling& scaling, bool grows) {
  if (!grows) return scaling.attention_factor;
  const auto contexts = static_cast<double>(position / scaling.original_context);
  return scaling.attention_factor * (1 + scaling.query_growth * std::log(1 + contexts));
}

// Rows that a thread fills at a time. A context of a million tokens has as many rows.
constexpr int64_t kRows = 4096;

void fill_row(int64_t position, double size, std::span<const double> frequencies,
              std::span<float> cos, std::span<float> sin) {
  for (size_t pair = 0; pair < frequencies.size(); ++pair) {
    const double angle = static_cast<double>(position) * frequencies[pair];
    cos[pair] = static_cast<float>(size * std::cos(angle));
    sin[pair] = static_cast<float>(size * std::sin(angle));
  }
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& config, int64_t context) {
  std::vector<double> frequencies;
  for (int32_t pair = 0; pair < config.rotary_width() / 2; ++pair) {
    const double exponent = -2.0 * pair / config.rotary_width();
    const double frequency = std::pow(static_cast<double>(config.rope_theta), exponent);
    frequencies.push_back(scaled_frequency(frequency, static_cast<size_t>(pair), config, context));
  }
  return frequencies;
}

void fill_rope_table(const ModelConfig& config, bool grows, MatrixView<float> cos,
                     MatrixView<float> sin) {
  const std::vector<double> frequencies = rope_frequencies(config, cos.rows);
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t first = next.fetch_add(kRows); first < cos.rows; first = next.fetch_add(kRows)) {
      for (int64_t row = first; row < std::min(first + kRows, cos.rows); ++row) {
        fill_row(row, size_at(row, config.rope_scaling, grows), frequencies, cos.row(row),
                 sin.row(row));
      }
    }
  };
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  std::vector<std::jthread> others;
  for (int64_t i = 1; i < std::min(div_ceil(cos.rows, kRows), cores); ++i) {
    others.emplace_back(work);
  }
  work();
}

}  // namespace tessera
