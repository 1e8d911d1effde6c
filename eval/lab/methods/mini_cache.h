#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numbers>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/layer_rows.h"
#include "eval/lab/levels.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Gives pairs of deep layers one direction for each token, between their own, and keeps their
// lengths. Pairs whose directions differ most stay as they are (MiniCache, section 4).
class MiniCache final : public Cloned<MiniCache> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<MiniCache>();
    method->start_ = settings.integer("start", shape.layers / 2);
    method->place_ = settings.number("place", 0.6);
    method->retained_ = settings.number("retained", 0.05);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    for (int32_t layer = start_; layer + 1 < prompt.shape.layers; layer += 2) {
      for (const Part part : {Part::keys, Part::values}) {
        double least = std::numbers::pi;
        double most = 0;
        for_each_pair(layer, part, 0, cache, [&](std::span<float> a, std::span<float> b) {
          least = std::min(least, angle(a, b));
          most = std::max(most, angle(a, b));
        });
        bounds_.push_back(most - (most - least) * retained_);
      }
    }
    merge_from(0, cache);
  }

  void after_token(Cache& cache) override { merge_from(cache.tokens - 1, cache); }

  // Counts in f16: layers that are not merged, a direction and two lengths of each pair, and the
  // retained pairs with a position in 32 bits.
  int64_t bytes(const Cache& cache) const override {
    const Shape& shape = cache.shape;
    const int64_t pairs = std::ssize(bounds_) / 2;
    const int64_t rows = int64_t{cache.tokens} * shape.kv_heads * 2;  // of keys and values
    return (shape.layers - 2 * pairs) * rows * shape.head_dim * kHalfBytes +
           pairs * rows * (shape.head_dim + 2) * kHalfBytes +
           apart_ * (2 * shape.head_dim * kHalfBytes + 4);
  }

 private:
  static double angle(std::span<const float> a, std::span<const float> b) {
    const double lengths = std::sqrt(double{dot(a, a)} * double{dot(b, b)});
    return lengths == 0 ? 0 : std::acos(std::clamp(double{dot(a, b)} / lengths, -1.0, 1.0));
  }

  // Calls `see` with the rows of a layer and of the next one, for all heads and tokens.
  template <class See>
  static void for_each_pair(int32_t layer, Part part, int32_t first, Cache& cache, See&& see) {
    for (int32_t kv_head = 0; kv_head < cache.shape.kv_heads; ++kv_head) {
      HeadCache& a = cache.at(layer, kv_head);
      HeadCache& b = cache.at(layer + 1, kv_head);
      for (int32_t i = first; i < a.size(); ++i) {
        if (part == Part::keys) {
          see(a.keys.row(i), b.keys.row(i));
        } else {
          see(a.values.row(i), b.values.row(i));
        }
      }
    }
  }

  void merge_from(int32_t first, Cache& cache) {
    size_t at = 0;
    for (int32_t layer = start_; layer + 1 < cache.shape.layers; layer += 2) {
      for (const Part part : {Part::keys, Part::values}) {
        const double bound = bounds_[at++];
        for_each_pair(layer, part, first, cache, [&](std::span<float> a, std::span<float> b) {
          if (angle(a, b) > bound) {
            ++apart_;
          } else {
            merge(a, b);
          }
        });
      }
    }
  }

  void merge(std::span<float> a, std::span<float> b) const {
    const double between = angle(a, b);
    if (between < 1e-7) return;  // they have one direction
    const double length_a = std::sqrt(double{dot(a, a)});
    const double length_b = std::sqrt(double{dot(b, b)});
    const double of_a = std::sin((1 - place_) * between) / std::sin(between);
    const double of_b = std::sin(place_ * between) / std::sin(between);
    for (size_t c = 0; c < a.size(); ++c) {
      const double direction = of_a * double{a[c]} / length_a + of_b * double{b[c]} / length_b;
      a[c] = static_cast<float>(direction * length_a);
      b[c] = static_cast<float>(direction * length_b);
    }
  }

  int32_t start_ = 0;           // first layer of a pair
  double place_ = 0;            // of the direction, from the first layer's to the second's
  double retained_ = 0;         // part of the range of angles, at its far end
  std::vector<double> bounds_;  // angles beyond which pairs stay, of keys and values by pair
  int64_t apart_ = 0;           // rows of pairs that stay
};

}  // namespace tessera::lab
