#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "eval/lab/directions.h"
#include "eval/lab/layer_rows.h"
#include "eval/lab/levels.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Quantises keys by channel and values by token, holds the largest and the least number of each
// vector apart, and adds a matrix of low rank that approximates a head's error (GEAR, section 3).
// New tokens wait in a buffer until it is full.
class Gear final : public Cloned<Gear> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<Gear>();
    method->bits_ = settings.integer("bits", 2);
    method->group_ = settings.integer("group", 64);
    method->outliers_ = settings.number("outliers", 0.02);
    method->rank_ = settings.integer("rank", 4);
    method->later_rank_ = settings.integer("later_rank", 2);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    compress(prompt.size() - prompt.size() % group_, rank_, cache);
  }

  void after_token(Cache& cache) override {
    if (cache.tokens - done_ >= group_) compress(done_ + group_, later_rank_, cache);
  }

  // Counts levels, least number and step of groups, an f16 number and a 16-bit index of each
  // outlier, both factors of the low rank in f16, and the buffer in f16.
  int64_t bytes(const Cache& cache) const override {
    const int64_t buffer = cache.tokens - done_;
    return bytes_ + std::ssize(cache.heads) * buffer * 2 * cache.shape.head_dim * kHalfBytes;
  }

 private:
  using Outliers = std::vector<std::pair<float*, float>>;  // where, and the number

  // Compresses the tokens up to `end`.
  void compress(int32_t end, int rank, Cache& cache) {
    const int32_t count = end - done_;
    if (count == 0) return;
    for (int32_t layer = 0; layer < cache.shape.layers; ++layer) {
      for (const Part part : {Part::keys, Part::values}) {
        const Rows exact = layer_rows(cache, layer, part, done_, count);
        Rows made = exact;
        const Outliers apart = part == Part::keys ? from_channels(made) : from_tokens(made);
        if (part == Part::keys) {
          round_channels(made.view(), group_, bits_);
        } else {
          round_tokens(made.view(), group_, bits_);
        }
        for (const auto& [where, number] : apart) *where = number;
        for (int32_t head = 0; head < cache.shape.kv_heads; ++head) {
          const int64_t width = cache.shape.head_dim;
          add_low_rank(exact.columns(head * width, width), rank,
                       made.view().columns(head * width, width));
        }
        set_layer_rows(cache, layer, part, done_, made);
        bytes_ += bytes_of(part, made, std::ssize(apart), rank, cache.shape);
      }
    }
    done_ = end;
  }

  // Takes the outliers out of a vector, and puts the vector's mean in their places.
  void take(float* vector, int64_t count, int64_t stride, Outliers& to) const {
    const auto each = static_cast<int64_t>(static_cast<double>(count) * outliers_ / 2);
    std::vector<int64_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::less<>(), [&](int64_t i) { return vector[i * stride]; });
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += double{vector[i * stride]};
    for (int64_t i = 0; i < count; ++i) {
      if (i >= each && i < count - each) continue;
      float* const where = vector + order[static_cast<size_t>(i)] * stride;
      to.emplace_back(where, *where);
      *where = static_cast<float>(sum / static_cast<double>(count));
    }
  }
  Outliers from_channels(Rows& rows) const {
    Outliers apart;
    for (int64_t c = 0; c < rows.cols(); ++c) {
      take(rows.row(0).data() + c, rows.rows(), rows.cols(), apart);
    }
    return apart;
  }
  Outliers from_tokens(Rows& rows) const {
    Outliers apart;
    for (int64_t r = 0; r < rows.rows(); ++r) take(rows.row(r).data(), rows.cols(), 1, apart);
    return apart;
  }

  static void add_low_rank(MatrixView<const float> exact, int rank, MatrixView<float> made) {
    Rows error(exact.rows, exact.cols);
    for (int64_t r = 0; r < exact.rows; ++r) {
      std::ranges::transform(exact.row(r), made.row(r), error.row(r).begin(), std::minus<>());
    }
    project_onto(leading_directions(std::as_const(error).view(), rank), error.view());
    for (int64_t r = 0; r < exact.rows; ++r) {
      std::ranges::transform(made.row(r), error.row(r), made.row(r).begin(), std::plus<>());
    }
  }

  int64_t bytes_of(Part part, const Rows& rows, int64_t outliers, int rank,
                   const Shape& shape) const {
    const int64_t groups = part == Part::keys ? div_ceil(rows.rows(), group_) * rows.cols()
                                              : rows.rows() * div_ceil(rows.cols(), group_);
    constexpr int64_t kOutlierBytes = 4;
    return packed_bytes(rows.rows() * rows.cols(), bits_) + groups * kGroupBytes +
           outliers * kOutlierBytes +
           shape.kv_heads * (rows.rows() + shape.head_dim) * rank * kHalfBytes;
  }

  int bits_ = 0;
  int32_t group_ = 0;    // tokens of a channel or channels of a token; tokens of the buffer
  double outliers_ = 0;  // share of each vector
  int rank_ = 0;         // of a prompt
  int later_rank_ = 0;   // of a full buffer
  int32_t done_ = 0;     // tokens that are compressed
  int64_t bytes_ = 0;    // of them
};

}  // namespace tessera::lab
