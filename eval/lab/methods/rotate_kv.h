#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "eval/lab/before_rope.h"
#include "eval/lab/hadamard.h"
#include "eval/lab/layer_rows.h"
#include "eval/lab/levels.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Rotates the keys of several heads together before RoPE, and values head by head, by the Hadamard
// transform. Channels of keys are ordered by their sums before they are rounded in groups of a
// token. Tokens with massive activations stay as they are (RotateKV, section 3).
class RotateKv final : public Cloned<RotateKv, BeforeRope> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<RotateKv>();
    method->bits_ = settings.integer("bits", 2);
    method->group_ = settings.integer("group", 128);
    method->massive_ = settings.integer("massive", 20);
    method->heads_ = std::gcd(settings.integer("heads", 4), shape.kv_heads);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
      Rows keys = from.keys_before;
      rotate_keys(prompt.shape, keys);
      orders_.push_back(order_by_sums(keys));
      const std::set<int32_t> kept = massive_tokens(from.input);
      kept_ += static_cast<int64_t>(kept.size());
      quantise(layer, 0, kept, keys, cache);
    }
  }

  void after_token(Cache& cache) override {
    for (int32_t layer = 0; layer < cache.shape.layers; ++layer) {
      const int32_t newest = cache.tokens - 1;
      Rows keys = layer_rows(cache, layer, Part::keys, newest, 1);
      take_rope_back(layer, newest, keys);
      rotate_keys(cache.shape, keys);
      quantise(layer, newest, {}, keys, cache);
    }
  }

  // Counts levels, step and zero of each group, and massive tokens in f16 with their position in
  // 32 bits. The channels' order belongs to the model.
  int64_t bytes(const Cache& cache) const override {
    const int64_t width = cache.shape.head_dim;
    const int64_t of_token = packed_bytes(width, bits_) + div_ceil(width, group_) * kGroupBytes;
    const int64_t all = int64_t{cache.tokens} * cache.shape.layers;
    return cache.shape.kv_heads * 2 * ((all - kept_) * of_token + kept_ * width * kHalfBytes) +
           kept_ * 4;
  }

 private:
  // Rotates heads in groups, or back: the transform is its own inverse.
  void rotate_keys(const Shape& shape, Rows& keys) const {
    const auto width = static_cast<size_t>(heads_ * shape.head_dim);
    for (int64_t i = 0; i < keys.rows(); ++i) {
      for (size_t first = 0; first < keys.row(i).size(); first += width) {
        hadamard(keys.row(i).subspan(first, width));
      }
    }
  }

  static std::vector<size_t> order_by_sums(const Rows& rows) {
    std::vector<double> sums(static_cast<size_t>(rows.cols()));
    for (int64_t i = 0; i < rows.rows(); ++i) {
      for (size_t c = 0; c < sums.size(); ++c) sums[c] += double{rows.row(i)[c]};
    }
    std::vector<size_t> order(sums.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::less<>(), [&](size_t c) { return sums[c]; });
    return order;
  }

  // Returns: the tokens of the largest elements of a layer's input.
  std::set<int32_t> massive_tokens(const Rows& input) const {
    std::vector<float> sizes;
    for (int64_t i = 0; i < input.rows(); ++i) {
      for (const float element : input.row(i)) sizes.push_back(std::fabs(element));
    }
    std::vector<size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    const auto count = std::min(order.size(), static_cast<size_t>(massive_));
    std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(count),
                              std::greater<>(), [&](size_t i) { return sizes[i]; });
    std::set<int32_t> tokens;
    for (size_t i = 0; i < count; ++i) {
      tokens.insert(static_cast<int32_t>(order[i] / static_cast<size_t>(input.cols())));
    }
    return tokens;
  }

  // Quantises tokens from `first` on, but those kept.
  // keys: rotated
  void quantise(int32_t layer, int32_t first, const std::set<int32_t>& kept, Rows& keys,
                Cache& cache) const {
    const auto width = static_cast<size_t>(cache.shape.head_dim);
    const std::vector<size_t>& order = orders_[static_cast<size_t>(layer)];
    const Rows exact =
        layer_rows(cache, layer, Part::keys, first, static_cast<int32_t>(keys.rows()));
    Rows values = layer_rows(cache, layer, Part::values, first, static_cast<int32_t>(keys.rows()));
    for (int64_t i = 0; i < keys.rows(); ++i) {
      if (kept.contains(first + static_cast<int32_t>(i))) continue;
      std::vector<float> ordered;
      for (const size_t channel : order) ordered.push_back(keys.row(i)[channel]);
      for (size_t at = 0; at < ordered.size(); at += width) {
        round_head(std::span(ordered).subspan(at, width));
        const std::span<float> value = values.row(i).subspan(at, width);
        hadamard(value);
        round_head(value);
        hadamard(value);
      }
      for (size_t c = 0; c < order.size(); ++c) keys.row(i)[order[c]] = ordered[c];
    }
    rotate_keys(cache.shape, keys);
    apply_rope(layer, first, keys);
    for (int64_t i = 0; i < keys.rows(); ++i) {
      if (!kept.contains(first + static_cast<int32_t>(i))) continue;
      std::ranges::copy(exact.row(i), keys.row(i).begin());
    }
    set_layer_rows(cache, layer, Part::keys, first, keys);
    set_layer_rows(cache, layer, Part::values, first, values);
  }

  // Rounds groups to levels that include zero.
  void round_head(std::span<float> channels) const {
    for (size_t first = 0; first < channels.size(); first += static_cast<size_t>(group_)) {
      const auto count = std::min(static_cast<size_t>(group_), channels.size() - first);
      const std::span<float> group = channels.subspan(first, count);
      const auto [least, most] = std::ranges::minmax(group);
      const int levels = (1 << bits_) - 1;
      const double step = (double{most} - double{least}) / levels;
      if (step == 0) continue;
      const double zero = std::nearbyint(-double{least} / step);
      for (float& number : group) {
        const double level = std::nearbyint(double{number} / step) + zero;
        number = static_cast<float>((std::clamp(level, 0.0, double(levels)) - zero) * step);
      }
    }
  }

  int bits_ = 0;
  int32_t group_ = 0;                        // channels
  int32_t massive_ = 0;                      // elements whose tokens are kept
  int32_t heads_ = 0;                        // that are rotated together
  int64_t kept_ = 0;                         // massive tokens of all layers
  std::vector<std::vector<size_t>> orders_;  // of the channels, by layer
};

}  // namespace tessera::lab
