#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "eval/lab/hadamard.h"
#include "eval/lab/levels.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Rotates tiles of tokens by the Hadamard transform, divides them by scales of tokens and channels
// until both have equal variances, and quantises keys by channel and values by token (KVarN,
// section 4). Tokens of a tile that is not full stay as they are.
class Kvarn final : public Cloned<Kvarn> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<Kvarn>();
    method->key_bits_ = settings.integer("key_bits", 2);
    method->value_bits_ = settings.integer("value_bits", 2);
    method->tile_ = settings.integer("tile", 128);
    method->iterations_ = settings.integer("iterations", 16);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    while (prompt.size() - done_ >= tile_) compress_tile(cache);
  }

  void after_token(Cache& cache) override {
    if (cache.tokens - done_ >= tile_) compress_tile(cache);
  }

  // Counts levels, a tile's scales of tokens and of channels in f16, the least number of each
  // group in f16, and the tokens after the last tile in f16. A group's step is part of a scale.
  int64_t bytes(const Cache& cache) const override {
    const int64_t width = cache.shape.head_dim;
    const int64_t tiles = done_ / tile_;
    const int64_t scales = 2 * (tile_ + width) + width + tile_;
    const int64_t rest = (cache.tokens - done_) * 2 * width;
    return std::ssize(cache.heads) *
           (packed_bytes(done_ * width, key_bits_) + packed_bytes(done_ * width, value_bits_) +
            (tiles * scales + rest) * kHalfBytes);
  }

 private:
  // A tile divided by its scales, which multiply the rounded tile again.
  struct Scales {
    std::vector<double> of_tokens;
    std::vector<double> of_channels;
  };

  void compress_tile(Cache& cache) {
    for (HeadCache& head : cache.heads) {
      round_tile(head.keys.view().rows_from(done_, tile_), true);
      round_tile(head.values.view().rows_from(done_, tile_), false);
    }
    done_ += tile_;
  }

  void round_tile(MatrixView<float> tile, bool by_channel) const {
    for (int64_t i = 0; i < tile.rows; ++i) hadamard(tile.row(i));
    const Scales scales = balance(tile);
    scale_tile(scales, true, tile);
    if (by_channel) {
      round_channels(tile, tile_, key_bits_);
    } else {
      round_tokens(tile, tile.cols, value_bits_);
    }
    scale_tile(scales, false, tile);
    for (int64_t i = 0; i < tile.rows; ++i) hadamard(tile.row(i));
  }

  static void scale_tile(const Scales& scales, bool divide, MatrixView<float> tile) {
    for (int64_t i = 0; i < tile.rows; ++i) {
      for (int64_t c = 0; c < tile.cols; ++c) {
        const double scale =
            scales.of_tokens[static_cast<size_t>(i)] * scales.of_channels[static_cast<size_t>(c)];
        float& number = tile.row(i)[static_cast<size_t>(c)];
        number = static_cast<float>(divide ? double{number} / scale : double{number} * scale);
      }
    }
  }

  // Deviations of the tile's tokens and channels under scales.
  static Scales deviations(MatrixView<const float> tile, const Scales& under) {
    const auto tokens = static_cast<size_t>(tile.rows);
    const auto channels = static_cast<size_t>(tile.cols);
    std::vector<double> sums(tokens + channels);
    std::vector<double> squares(tokens + channels);
    for (size_t i = 0; i < tokens; ++i) {
      for (size_t c = 0; c < channels; ++c) {
        const double number = double{tile.row(static_cast<int64_t>(i))[c]} /
                              (under.of_tokens[i] * under.of_channels[c]);
        sums[i] += number;
        squares[i] += number * number;
        sums[tokens + c] += number;
        squares[tokens + c] += number * number;
      }
    }
    const auto deviation = [&](size_t at, size_t of) {
      const auto count = static_cast<double>(of);
      return std::sqrt(std::max(0.0, squares[at] - sums[at] * sums[at] / count) / (count - 1));
    };
    Scales found;
    for (size_t i = 0; i < tokens; ++i) found.of_tokens.push_back(deviation(i, channels));
    for (size_t c = 0; c < channels; ++c) {
      found.of_channels.push_back(deviation(tokens + c, tokens));
    }
    return found;
  }

  static double imbalance(const Scales& deviations) {
    const auto ratio = [](const std::vector<double>& of) {
      const auto [least, most] = std::ranges::minmax(of);
      return most / std::max(least, 1e-8);
    };
    return ratio(deviations.of_tokens) + ratio(deviations.of_channels);
  }

  static void grow(const std::vector<double>& deviations, std::vector<double>& scales) {
    for (size_t i = 0; i < scales.size(); ++i) {
      const double grown = std::log(scales[i]) + std::log(std::clamp(deviations[i], 1e-3, 1e3));
      scales[i] = std::exp(std::clamp(grown, -0.3, 10.0));
    }
  }

  // Divides by the deviations of tokens and of channels in turn.
  // Returns: the scales under which the tile was most even.
  Scales balance(MatrixView<const float> tile) const {
    Scales scales{std::vector<double>(static_cast<size_t>(tile.rows), 1),
                  std::vector<double>(static_cast<size_t>(tile.cols), 1)};
    Scales best = scales;
    Scales own = deviations(tile, scales);
    double least = imbalance(own);
    for (int i = 0; i < iterations_; ++i) {
      grow(own.of_tokens, scales.of_tokens);
      grow(deviations(tile, scales).of_channels, scales.of_channels);
      own = deviations(tile, scales);
      if (imbalance(own) > least) continue;
      least = imbalance(own);
      best = scales;
    }
    return best;
  }

  int key_bits_ = 0;
  int value_bits_ = 0;
  int32_t tile_ = 0;  // tokens
  int iterations_ = 0;
  int32_t done_ = 0;  // tokens of full tiles
};

}  // namespace tessera::lab
