#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/directions.h"
#include "eval/lab/hadamard.h"
#include "eval/lab/levels.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Rotates keys by the eigenvectors of the queries' covariance and values by those of a covariance
// weighted by attention's logits, mixes by the Hadamard transform and a permutation by reversed
// bits, clips, and quantises token by token (OSCAR, sections 3 and 4). The first and the newest
// tokens stay as they are.
class Oscar final : public Cloned<Oscar> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<Oscar>();
    method->bits_ = settings.integer("bits", 2);
    method->group_ = settings.integer("group", 128);
    method->key_clip_ = settings.number("key_clip", 0.96);
    method->value_clip_ = settings.number("value_clip", 0.92);
    method->sinks_ = settings.integer("sinks", 64);
    method->recent_ = settings.integer("recent", 256);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    auto rotations = std::make_shared<std::vector<Rotations>>();
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      rotations->push_back(calibrate(prompt, layer));
    }
    rotations_ = rotations;
    done_ = std::min(sinks_, prompt.size());
    quantise_to(std::max(done_, prompt.size() - recent_), cache);
  }

  void after_token(Cache& cache) override {
    quantise_to(std::max(done_, cache.tokens - recent_), cache);
  }

  // Counts levels, least number and step of groups, and the other tokens in f16. Rotations are of
  // the model, not of a sequence.
  int64_t bytes(const Cache& cache) const override {
    const int64_t width = cache.shape.head_dim;
    const int64_t quantised = std::max(0, done_ - sinks_);
    return std::ssize(cache.heads) * 2 *
           (packed_bytes(quantised * width, bits_) +
            quantised * div_ceil(width, group_) * kGroupBytes +
            (cache.tokens - quantised) * width * kHalfBytes);
  }

 private:
  struct Rotations {
    Rows keys;  // [head_dim, head_dim]: a row x becomes x * keys
    Rows values;
  };

  static Rotations calibrate(const Prompt& prompt, int32_t layer) {
    const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
    const Shape& shape = prompt.shape;
    const double tokens = prompt.size();
    Symmetric of_keys(shape.head_dim);
    Symmetric of_values(shape.head_dim);
    for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      Symmetric queries(shape.head_dim);
      for (int32_t head = kv_head * shape.group(); head < (kv_head + 1) * shape.group(); ++head) {
        add_gram(from.queries_of(shape, head), {}, 1 / (tokens * shape.group()), queries);
      }
      const MatrixView<const float> keys = from.keys_of(shape, kv_head);
      std::vector<double> weights;
      for (int64_t i = 0; i < keys.rows; ++i) weights.push_back(quadratic(queries, keys.row(i)));
      const double sum = std::max(1e-12, std::accumulate(weights.begin(), weights.end(), 0.0));
      add_gram(from.values_of(shape, kv_head), weights, 1 / (sum * shape.kv_heads), of_values);
      for (size_t i = 0; i < queries.elements.size(); ++i) {
        of_keys.elements[i] += queries.elements[i] / shape.kv_heads;
      }
    }
    return {rotation(eigen(of_keys)), rotation(eigen(of_values))};
  }

  // Returns: row * matrix * row^T.
  static double quadratic(const Symmetric& matrix, std::span<const float> row) {
    double sum = 0;
    for (int64_t i = 0; i < matrix.size; ++i) {
      double own = 0;
      for (int64_t j = 0; j < matrix.size; ++j) {
        own += matrix.row(i)[j] * double{row[static_cast<size_t>(j)]};
      }
      sum += own * double{row[static_cast<size_t>(i)]};
    }
    return sum;
  }

  // Returns: eigenvectors in columns, from the least eigenvalue on, times the Hadamard matrix,
  // times the permutation that spreads the directions of large eigenvalues.
  static Rows rotation(const Eigen& of) {
    const int64_t size = of.vectors.cols();
    const std::vector<int64_t> spread = reversed_bits(size);
    Rows made(size, size);
    for (int64_t i = 0; i < size; ++i) {
      std::vector<float> row;
      for (int64_t c = 0; c < size; ++c) {
        row.push_back(of.vectors.row(size - 1 - c)[static_cast<size_t>(i)]);
      }
      hadamard(row);
      for (int64_t rank = 0; rank < size; ++rank) {
        made.row(i)[static_cast<size_t>(spread[static_cast<size_t>(rank)])] =
            row[static_cast<size_t>(size - 1 - rank)];
      }
    }
    return made;
  }

  // Returns: the order of 0, 1, ... by their reversed bits.
  static std::vector<int64_t> reversed_bits(int64_t size) {
    std::vector<int64_t> order(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::less<>(), [](int64_t number) {
      uint64_t reversed = 0;
      for (int bit = 0; bit < 32; ++bit) reversed |= (number >> bit & 1ULL) << (31 - bit);
      return reversed;
    });
    return order;
  }

  void quantise_to(int32_t end, Cache& cache) {
    for (int32_t layer = 0; layer < cache.shape.layers; ++layer) {
      const Rotations& by = (*rotations_)[static_cast<size_t>(layer)];
      for (int32_t kv_head = 0; kv_head < cache.shape.kv_heads; ++kv_head) {
        HeadCache& head = cache.at(layer, kv_head);
        for (int32_t i = done_; i < end; ++i) {
          quantise(by.keys, key_clip_, head.keys.row(i));
          quantise(by.values, value_clip_, head.values.row(i));
        }
      }
    }
    done_ = end;
  }

  void quantise(const Rows& rotation, double clip, std::span<float> row) const {
    Rows turned(1, rotation.cols());
    for (size_t i = 0; i < row.size(); ++i) {
      add_scaled(turned.row(0), row[i], rotation.row(static_cast<int64_t>(i)));
    }
    const float most = quantile_of_sizes(turned.row(0), clip);
    for (float& element : turned.row(0)) element = std::clamp(element, -most, most);
    round_tokens(turned.view(), group_, bits_);
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = dot(turned.row(0), rotation.row(static_cast<int64_t>(i)));
    }
  }

  static float quantile_of_sizes(std::span<const float> elements, double share) {
    std::vector<float> sizes;
    for (const float element : elements) sizes.push_back(std::fabs(element));
    std::ranges::sort(sizes);
    const double place = share * static_cast<double>(sizes.size() - 1);
    const auto below = static_cast<size_t>(place);
    const float above = sizes[std::min(below + 1, sizes.size() - 1)];
    return sizes[below] + static_cast<float>(place - std::floor(place)) * (above - sizes[below]);
  }

  int bits_ = 0;
  int32_t group_ = 0;  // channels
  double key_clip_ = 0;
  double value_clip_ = 0;
  int32_t sinks_ = 0;
  int32_t recent_ = 0;
  int32_t done_ = 0;  // tokens that are sinks or quantised
  std::shared_ptr<const std::vector<Rotations>> rotations_;
};

}  // namespace tessera::lab
