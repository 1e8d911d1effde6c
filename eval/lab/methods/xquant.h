#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/before_rope.h"
#include "eval/lab/directions.h"
#include "eval/lab/layer_rows.h"
#include "eval/lab/levels.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera::lab {

// Holds what keys and values are computed from, in few bits, and computes them again (XQuant,
// section 3). With a KV head for each query head that is the layer's input, by token. Where heads
// share keys it is the input's products with the left singular vectors of the weights of keys, by
// channel, and of values, by token.
class Xquant final : public Cloned<Xquant, BeforeRope> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<Xquant>();
    method->bits_ = settings.integer("bits", 4);
    method->group_ = settings.integer("group", 128);
    method->shared_ = settings.integer("latent", shape.group() > 1 ? 1 : 0) != 0;
    method->weights_ = std::make_shared<std::vector<Weights>>();
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    width_ = prompt.layers.front().input.cols();
    if (shared_) {
      if (weights_->empty()) find_weights(prompt.shape);
      for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
        quantise(layer, 0, prompt.size() - prompt.size() % group_, Part::keys, cache);
        quantise(layer, 0, prompt.size(), Part::values, cache);
      }
      keys_ = prompt.size() - prompt.size() % group_;
      return;
    }
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      Rows input = prompt.layers[static_cast<size_t>(layer)].input;
      round_tokens(input.view(), group_, bits_);
      Model::Projected made = model_->project(layer, input);
      apply_rope(layer, 0, made.keys_before);
      set_layer_rows(cache, layer, Part::keys, 0, made.keys_before);
      set_layer_rows(cache, layer, Part::values, 0, made.values);
    }
    keys_ = prompt.size();
  }

  void after_token(Cache& cache) override {
    if (!shared_) return;
    for (int32_t layer = 0; layer < cache.shape.layers; ++layer) {
      if (cache.tokens - keys_ >= group_) {
        quantise(layer, keys_, group_, Part::keys, cache);
      }
      quantise(layer, cache.tokens - 1, 1, Part::values, cache);
    }
    if (cache.tokens - keys_ >= group_) keys_ += group_;
  }

  // Counts levels, least number and step of groups, and keys before a group is full in f16.
  // Without shared heads generated tokens are inputs in f16: the laboratory shows no input of
  // theirs to a method.
  int64_t bytes(const Cache& cache) const override {
    const Shape& shape = cache.shape;
    const int64_t width = shape.kv_heads * shape.head_dim;
    const int64_t rest = cache.tokens - keys_;
    if (!shared_) {
      return shape.layers *
             (keys_ * (packed_bytes(width_, bits_) + div_ceil(width_, group_) * kGroupBytes) +
              rest * width_ * kHalfBytes);
    }
    const int64_t of_keys = packed_bytes(keys_ * width, bits_) +
                            keys_ / group_ * width * kGroupBytes + rest * width * kHalfBytes;
    const int64_t of_values =
        cache.tokens * (packed_bytes(width, bits_) + div_ceil(width, group_) * kGroupBytes);
    return shape.layers * (of_keys + of_values);
  }

 private:
  // The weights of keys or values by singular values: the products with the left singular vectors
  // are (rows - bias) * right^T / strengths.
  struct Weights {
    Rows right;  // singular vectors, one a row
    std::vector<double> strengths;
    std::vector<float> bias;
  };

  // Finds the weights by what the layers make of unit inputs.
  void find_weights(const Shape& shape) const {
    weights_->resize(static_cast<size_t>(2 * shape.layers));
    std::vector<Symmetric> grams;
    Rows units(width_ + 1, width_);  // the last one is zero
    for (int64_t i = 0; i < width_; ++i) units.row(i)[static_cast<size_t>(i)] = 1;
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
      const Model::Projected made = model_->project(layer, units);
      for (const Rows* rows : {&made.keys_before, &made.values}) {
        const std::span<const float> bias = rows->row(width_);
        Rows plain(width_, rows->cols());
        for (int64_t i = 0; i < width_; ++i) {
          std::ranges::transform(rows->row(i), bias, plain.row(i).begin(), std::minus<>());
        }
        (*weights_)[grams.size()].bias.assign(bias.begin(), bias.end());
        add_gram(std::as_const(plain).view(), {}, 1, grams.emplace_back(rows->cols()));
      }
    }
    model_->pool().parallel_for(std::ssize(grams), 1,
                                [&](int64_t begin, int64_t end, int /*worker*/) {
                                  for (int64_t i = begin; i < end; ++i) {
                                    Eigen found = eigen(grams[static_cast<size_t>(i)]);
                                    for (double& value : found.values) value = std::sqrt(value);
                                    Weights& own = (*weights_)[static_cast<size_t>(i)];
                                    own.strengths = std::move(found.values);
                                    own.right = std::move(found.vectors);
                                  }
                                });
  }

  // Quantises the latent rows of tokens [first, first + count), and makes their rows again.
  void quantise(int32_t layer, int32_t first, int32_t count, Part part, Cache& cache) const {
    if (count == 0) return;
    const Weights& weights = (*weights_)[static_cast<size_t>(layer * 2 + (part == Part::values))];
    Rows rows = layer_rows(cache, layer, part, first, count);
    if (part == Part::keys) take_rope_back(layer, first, rows);
    Rows latent(count, rows.cols());
    for (int64_t i = 0; i < count; ++i) {
      add_scaled(rows.row(i), -1, weights.bias);
      for (int64_t c = 0; c < rows.cols(); ++c) {
        latent.row(i)[static_cast<size_t>(c)] = static_cast<float>(
            double{dot(rows.row(i), weights.right.row(c))} / strength(weights, c));
      }
    }
    if (part == Part::keys) {
      round_channels(latent.view(), group_, bits_);
    } else {
      round_tokens(latent.view(), group_, bits_);
    }
    for (int64_t i = 0; i < count; ++i) {
      std::ranges::copy(weights.bias, rows.row(i).begin());
      for (int64_t c = 0; c < rows.cols(); ++c) {
        const double number = double{latent.row(i)[static_cast<size_t>(c)]};
        add_scaled(rows.row(i), static_cast<float>(number * strength(weights, c)),
                   weights.right.row(c));
      }
    }
    if (part == Part::keys) apply_rope(layer, first, rows);
    set_layer_rows(cache, layer, part, first, rows);
  }
  static double strength(const Weights& weights, int64_t channel) {
    return std::max(weights.strengths[static_cast<size_t>(channel)], 1e-20);
  }

  int bits_ = 0;
  int32_t group_ = 0;    // tokens of a channel, or channels of a token
  bool shared_ = false;  // query heads share keys
  int64_t width_ = 0;    // of the input
  int32_t keys_ = 0;     // tokens whose keys, or inputs, are quantised
  // Of keys and values by layer, found with the first prompt for all sequences.
  std::shared_ptr<std::vector<Weights>> weights_;
};

}  // namespace tessera::lab
