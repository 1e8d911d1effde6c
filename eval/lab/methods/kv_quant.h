#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/before_rope.h"
#include "eval/lab/layer_rows.h"
#include "eval/lab/levels.h"
#include "eval/lab/weighted_levels.h"

namespace tessera::lab {

// Rounds keys before RoPE by channel and values by token to levels of each layer at unequal
// distances, found by k-means with weights, and holds outliers apart (KVQuant, section 3). The
// first tokens stay as they are.
class KvQuant final : public Cloned<KvQuant, BeforeRope> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<KvQuant>();
    method->bits_ = settings.integer("bits", 3);
    method->outliers_ = settings.number("outliers", 0.01);
    method->sinks_ = settings.integer("sinks", 1);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    const int32_t first = std::min(sinks_, prompt.size());
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      layers_.push_back(calibrate(prompt, layer, first));
      Rows keys(prompt.layers.front().keys_before.cols());
      keys.add(prompt.layers[static_cast<size_t>(layer)].keys_before.view().rows_from(
          first, prompt.size() - first));
      quantise(layer, first, keys, cache);
    }
  }

  void after_token(Cache& cache) override {
    for (int32_t layer = 0; layer < cache.shape.layers; ++layer) {
      Rows keys = layer_rows(cache, layer, Part::keys, cache.tokens - 1, 1);
      take_rope_back(layer, cache.tokens - 1, keys);
      quantise(layer, cache.tokens - 1, keys, cache);
    }
  }

  // Counts levels; an f16 number and a 16-bit index of each outlier; for each token the places of
  // its outliers in 32 bits, of keys and of values, and the middle and the range of values in f16;
  // and the first tokens in f16. What is calibrated belongs to the model.
  int64_t bytes(const Cache& cache) const override {
    const Shape& shape = cache.shape;
    const int64_t width = shape.kv_heads * shape.head_dim;
    const int64_t first = std::min(sinks_, cache.tokens);
    constexpr int64_t kOutlierBytes = 4;
    constexpr int64_t kPlacesBytes = 8;
    return shape.layers * ((cache.tokens - first) *
                               (2 * packed_bytes(width, bits_) + kGroupBytes + kPlacesBytes) +
                           first * 2 * width * kHalfBytes) +
           apart_ * kOutlierBytes;
  }

 private:
  struct Range {
    double middle = 0;
    double half = 1;  // of the distance between the ends
    bool holds(float number) const { return std::fabs(double{number} - middle) <= half; }
    double from(float number) const { return (double{number} - middle) / half; }
  };
  struct Calibrated {
    std::vector<Range> channels;  // of keys
    Levels of_keys;
    Levels of_values;
  };

  // Returns: the range of numbers without `each` at either end.
  static Range range_without(std::vector<float> numbers, int64_t each) {
    std::ranges::sort(numbers);
    const double least = double{numbers[static_cast<size_t>(each)]};
    const double most = double{numbers[numbers.size() - 1 - static_cast<size_t>(each)]};
    // A little wider, so that its own ends lie in it.
    return {(least + most) / 2, std::max((most - least) / 2 * (1 + 1e-6), 1e-12)};
  }
  int64_t outliers_of(int64_t count) const {
    return std::min((count - 1) / 2,
                    static_cast<int64_t>(std::ceil(static_cast<double>(count) * outliers_ / 2)));
  }
  Range range_of_token(std::span<const float> values) const {
    return range_without({values.begin(), values.end()}, outliers_of(std::ssize(values)));
  }

  Calibrated calibrate(const Prompt& prompt, int32_t layer, int32_t first) const {
    const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
    const std::vector<double> key_weights = weights_of_channels(prompt, layer);
    const std::vector<double> value_weights = weights_of_tokens(prompt, layer);
    const auto tokens = prompt.size();
    Calibrated made;
    std::vector<Weighted> keys;
    std::vector<Weighted> values;
    for (int64_t c = 0; c < from.keys_before.cols(); ++c) {
      std::vector<float> channel;
      for (int32_t i = first; i < tokens; ++i) {
        channel.push_back(from.keys_before.row(i)[static_cast<size_t>(c)]);
      }
      if (channel.empty()) channel.push_back(0);
      const Range& range =
          made.channels.emplace_back(range_without(channel, outliers_of(std::ssize(channel))));
      for (const float number : channel) {
        if (!range.holds(number)) continue;
        keys.push_back({range.from(number), key_weights[static_cast<size_t>(c)]});
      }
    }
    for (int32_t i = first; i < tokens; ++i) {
      const Range range = range_of_token(from.values.row(i));
      for (size_t c = 0; c < from.values.row(i).size(); ++c) {
        const float number = from.values.row(i)[c];
        const size_t head = c / static_cast<size_t>(prompt.shape.head_dim);
        if (!range.holds(number)) continue;
        values.push_back(
            {range.from(number),
             value_weights[head * static_cast<size_t>(tokens) + static_cast<size_t>(i)]});
      }
    }
    made.of_keys = levels_of(std::move(keys));
    made.of_values = levels_of(std::move(values));
    return made;
  }
  Levels levels_of(std::vector<Weighted> numbers) const {
    if (numbers.empty()) return Levels{0};
    Levels levels = weighted_levels(numbers, bits_);
    if (bits_ == 2) keep_mean_and_deviation(numbers, levels);
    return levels;
  }

  // Returns: for each channel of keys, the mean square of what its queries have there, which RoPE
  // mixes with the channel half a head away.
  static std::vector<double> weights_of_channels(const Prompt& prompt, int32_t layer) {
    const Shape& shape = prompt.shape;
    const auto width = static_cast<size_t>(shape.head_dim);
    std::vector<double> weights(static_cast<size_t>(shape.kv_heads) * width, 1e-12);
    for (int32_t head = 0; head < shape.heads; ++head) {
      const MatrixView<const float> queries =
          prompt.layers[static_cast<size_t>(layer)].queries_of(shape, head);
      const size_t at = static_cast<size_t>(head / shape.group()) * width;
      for (int64_t i = 0; i < queries.rows; ++i) {
        for (size_t c = 0; c < width; ++c) {
          const double square = double{queries.row(i)[c]} * double{queries.row(i)[c]};
          weights[at + c] += square;
          weights[at + (c + width / 2) % width] += square;
        }
      }
    }
    return weights;
  }

  // Returns: for each KV head and token, the squares of the attention of the last queries.
  static std::vector<double> weights_of_tokens(const Prompt& prompt, int32_t layer) {
    const Shape& shape = prompt.shape;
    const auto tokens = static_cast<size_t>(prompt.size());
    constexpr int32_t kQueries = 32;
    std::vector<double> weights(static_cast<size_t>(shape.kv_heads) * tokens, 1e-12);
    for (int32_t head = 0; head < shape.heads; ++head) {
      const size_t at = static_cast<size_t>(head / shape.group()) * tokens;
      for_each_attention_row(prompt, layer, head, std::max(0, prompt.size() - kQueries),
                             prompt.size(), [&](int32_t, std::span<const float> row) {
                               for (size_t i = 0; i < row.size(); ++i) {
                                 weights[at + i] += double{row[i]} * double{row[i]};
                               }
                             });
    }
    return weights;
  }

  // Rounds tokens from `first` on.
  // keys: before RoPE
  void quantise(int32_t layer, int32_t first, Rows& keys, Cache& cache) {
    const Calibrated& by = layers_[static_cast<size_t>(layer)];
    const auto count = static_cast<int32_t>(keys.rows());
    if (count == 0) return;
    Rows values = layer_rows(cache, layer, Part::values, first, count);
    for (int32_t i = 0; i < count; ++i) {
      const Range range = range_of_token(values.row(i));
      for (size_t c = 0; c < by.channels.size(); ++c) {
        round_number(by.channels[c], by.of_keys, keys.row(i)[c]);
        round_number(range, by.of_values, values.row(i)[c]);
      }
    }
    apply_rope(layer, first, keys);
    set_layer_rows(cache, layer, Part::keys, first, keys);
    set_layer_rows(cache, layer, Part::values, first, values);
  }
  void round_number(const Range& range, const Levels& levels, float& number) {
    if (range.holds(number)) {
      number = static_cast<float>(nearest(levels, range.from(number)) * range.half + range.middle);
    } else {
      ++apart_;
    }
  }

  int bits_ = 0;
  double outliers_ = 0;  // share of a channel of keys and of a token's values, at both ends
  int32_t sinks_ = 0;    // first tokens that stay
  int64_t apart_ = 0;    // outliers
  std::vector<Calibrated> layers_;
};

}  // namespace tessera::lab
