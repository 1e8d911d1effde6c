#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Prunes each token's key and value to its largest elements by magnitude, head by head (MUSTAFAR,
// section 2). The newest tokens stay dense.
class Mustafar final : public Cloned<Mustafar> {
 public:
  template <int percent>
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<Mustafar>();
    method->kept_of_key_ = kept(settings.number("keys", percent / 100.0), shape);
    method->kept_of_value_ = kept(settings.number("values", percent / 100.0), shape);
    method->window_ = settings.integer("window", 32);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    for (HeadCache& head : cache.heads) {
      for (int32_t entry = 0; entry < head.size() - window_; ++entry) prune(head, entry);
    }
  }

  void after_read(const Read& /*read*/, MatrixView<const float> /*weights*/,
                  HeadCache& head) override {
    if (head.size() > window_) prune(head, head.size() - window_ - 1);
  }

  // Counts the window in f16 and, for each tile of 64 tokens of one channel, a bitmap of 64 bits,
  // an offset of 32 bits, and the nonzero elements in f16, padded to a multiple of 8 (section 3
  // and figure 5b).
  int64_t bytes(const Cache& cache) const override {
    int64_t all = 0;
    for (const HeadCache& head : cache.heads) {
      const int32_t pruned = std::max(0, head.size() - window_);
      all += int64_t{head.size() - pruned} * 2 * cache.shape.head_dim * 2;
      all += tile_bytes(head.keys, pruned) + tile_bytes(head.values, pruned);
    }
    return all;
  }

 private:
  static int32_t kept(double sparsity, const Shape& shape) {
    return std::max(1, static_cast<int32_t>((1 - sparsity) * shape.head_dim));
  }

  void prune(HeadCache& head, int32_t entry) const {
    prune(head.keys.row(entry), kept_of_key_);
    prune(head.values.row(entry), kept_of_value_);
  }

  static void prune(std::span<float> row, int32_t kept) {
    std::vector<float> magnitudes(row.size());
    std::ranges::transform(row, magnitudes.begin(), [](float x) { return std::fabs(x); });
    auto next = row.begin();
    for (const int32_t index : largest(magnitudes, kept)) {
      std::fill(next, row.begin() + index, 0.0f);
      next = row.begin() + index + 1;
    }
    std::fill(next, row.end(), 0.0f);
  }

  static int64_t tile_bytes(const Rows& rows, int32_t tokens) {
    constexpr int64_t kTile = 64;
    int64_t all = 0;
    for (int64_t first = 0; first < tokens; first += kTile) {
      std::vector<int64_t> nonzero(static_cast<size_t>(rows.cols()));
      for (int64_t token = first; token < std::min<int64_t>(first + kTile, tokens); ++token) {
        const std::span<const float> row = rows.row(token);
        for (size_t i = 0; i < row.size(); ++i) nonzero[i] += row[i] != 0 ? 1 : 0;
      }
      for (const int64_t count : nonzero) all += 8 + 4 + round_up(count, 8) * 2;
    }
    return all;
  }

  int32_t kept_of_key_ = 0;
  int32_t kept_of_value_ = 0;
  int32_t window_ = 0;
};

}  // namespace tessera::lab
