#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera::lab {

// Drops tokens behind each layer while it computes the prompt, by the attention of the newest ones,
// so that deeper layers compute and keep fewer (PyramidInfer, section 3). Generated tokens that
// leave the newest ones are thinned likewise, sixteen at a time.
class PyramidInfer final : public Cloned<PyramidInfer> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<PyramidInfer>();
    method->recent_share_ = settings.number("recent", 0.2);
    method->decay_ = settings.number("decay", 0.9);
    method->least_ = settings.integer("least", 64);
    method->sinks_ = settings.integer("sinks", 4);
    method->newer_ = settings.number("newer", 1.2);
    method->later_decay_ = settings.number("later_decay", 0.1);
    method->later_share_ = settings.number("later_share", 0.9);
    method->thinned_ = settings.integer("thinned", 16);
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    const auto size = static_cast<int32_t>(tokens.size());
    recent_ = static_cast<int32_t>(recent_share_ * size) + 1;
    layers_.resize(static_cast<size_t>(cache.shape.layers));
    Pruning pruning(*this, size, model.pool(), cache);
    return model.compute(tokens, 0, pruning);
  }

  void after_read(const Read& read, MatrixView<const float> weights, HeadCache& head) override {
    std::deque<Row>& rows = layers_[static_cast<size_t>(read.layer)].rows;
    const auto span =
        std::min<size_t>(static_cast<size_t>(recent_ + thinned_), static_cast<size_t>(head.size()));
    if (read.kv_head == 0) {
      rows.push_back({read.position, std::vector<float>(span)});
      if (std::ssize(rows) > recent_) rows.pop_front();
    }
    for (int64_t i = 0; i < weights.rows; ++i) {
      add_scaled(rows.back().weights, 1, weights.row(i).last(span));
    }
  }

  void after_token(Cache& cache) override {
    for (int32_t layer = 0; layer < cache.shape.layers; ++layer) thin(layer, cache);
  }

  // Counts entries and the newest queries' attention to the newest tokens in f16.
  int64_t bytes(const Cache& cache) const override {
    int64_t weights = 0;
    for (const Layer& layer : layers_) {
      for (const Row& row : layer.rows) weights += std::ssize(row.weights);
    }
    constexpr int64_t kF16 = 2;
    return Method::bytes(cache) + weights * kF16;
  }

 private:
  // The attention of one query, summed over heads, to the newest positions up to its own.
  struct Row {
    int32_t position = 0;
    std::vector<float> weights;
    float to(int32_t other) const {
      const int64_t at = std::ssize(weights) - 1 - (position - other);
      return at < 0 || at >= std::ssize(weights) ? 0 : weights[static_cast<size_t>(at)];
    }
  };
  struct Layer {
    std::deque<Row> rows;  // of the newest queries
    int32_t done = 0;      // entries that are thinned already
  };

  // Computes a prompt's attention over the tokens that are left.
  class Pruning final : public LayerHandler {
   public:
    Pruning(PyramidInfer& method, int32_t tokens, ThreadPool& pool, Cache& cache)
        : method_(method), pool_(pool), cache_(cache), left_(static_cast<size_t>(tokens)) {
      std::iota(left_.begin(), left_.end(), 0);
    }

    void attend(const LayerStep& step) override {
      const Shape& shape = cache_.shape;
      const Rows queries = rows_left(step.queries);
      const Rows keys = rows_left(step.keys);
      const Rows values = rows_left(step.values);
      Rows out(queries.rows(), queries.cols());
      lab::attend({shape, queries.view(), 0, keys.view(), values.view(), step.scale, step.window,
                   out.view()},
                  pool_);
      for (int64_t i = 0; i < step.out.rows; ++i) std::ranges::fill(step.out.row(i), 0.0f);
      for (size_t i = 0; i < left_.size(); ++i) {
        const auto row = static_cast<int64_t>(i);
        std::ranges::copy(out.row(row), step.out.row(left_[i]).begin());
        for (int32_t head = 0; head < shape.kv_heads; ++head) {
          const int64_t column = int64_t{head} * shape.head_dim;
          cache_.at(step.layer, head)
              .add(left_[i], keys.columns(column, shape.head_dim).row(row),
                   values.columns(column, shape.head_dim).row(row));
        }
      }
      drop(step.layer, newest_attention(step, queries, keys));
    }

   private:
    Rows rows_left(MatrixView<const float> rows) const {
      Rows left(rows.cols);
      for (const int32_t token : left_) left.add(rows.row(token));
      return left;
    }

    // Returns: the newest queries' attention, summed over heads, [newest, tokens that are left].
    Rows newest_attention(const LayerStep& step, const Rows& queries, const Rows& keys) const {
      const Shape& shape = cache_.shape;
      const auto count = std::min<int64_t>(method_.recent_, queries.rows());
      const int64_t first = queries.rows() - count;
      Rows sums(count, queries.rows());
      pool_.parallel_for(count, 1, [&](int64_t begin, int64_t end, int /*worker*/) {
        for (int64_t i = begin; i < end; ++i) {
          for (int32_t head = 0; head < shape.heads; ++head) {
            const auto query =
                queries.columns(int64_t{head} * shape.head_dim, shape.head_dim).row(first + i);
            const auto of_head =
                keys.columns(int64_t{head / shape.group()} * shape.head_dim, shape.head_dim);
            std::vector<float> row;
            for (int64_t j = 0; j <= first + i; ++j) {
              row.push_back(step.scale * dot(query, of_head.row(j)));
            }
            softmax(row);
            add_scaled(sums.row(i).first(row.size()), 1, row);
          }
        }
      });
      return sums;
    }

    // Notes the newest queries' attention to each other, and drops the tokens that the next layer
    // does without.
    void drop(int32_t layer, const Rows& attention) {
      const int64_t before = attention.cols() - attention.rows();
      Layer& own = method_.layers_[static_cast<size_t>(layer)];
      own.done = static_cast<int32_t>(before);
      for (int64_t i = 0; i < attention.rows(); ++i) {
        const auto seen =
            attention.row(i).subspan(static_cast<size_t>(before), static_cast<size_t>(i + 1));
        own.rows.push_back({left_[static_cast<size_t>(before + i)], {seen.begin(), seen.end()}});
      }
      const double share = method_.share(method_.decay_, layer, cache_.shape.layers);
      const auto kept = static_cast<int32_t>(static_cast<double>(before) * share);
      const auto size = static_cast<int64_t>(cache_.at(0, 0).size());
      const auto least = std::min<int64_t>(method_.least_, size - attention.rows());
      if (before <= least || share >= 1 || kept <= least) return;
      std::vector<float> scores(static_cast<size_t>(before));
      for (int64_t i = 0; i < attention.rows(); ++i) {
        add_scaled(scores, method_.weight(i, attention.rows()),
                   attention.row(i).first(scores.size()));
      }
      for (int32_t i = 0; i < std::min<int64_t>(method_.sinks_, before); ++i) {
        scores[static_cast<size_t>(i)] = std::numeric_limits<float>::max();
      }
      std::vector<int32_t> next;
      for (const int32_t i : largest(scores, kept)) next.push_back(left_[static_cast<size_t>(i)]);
      next.insert(next.end(), left_.begin() + before, left_.end());
      left_ = std::move(next);
    }

    PyramidInfer& method_;
    ThreadPool& pool_;
    Cache& cache_;
    std::vector<int32_t> left_;  // positions
  };

  // Returns: the share of tokens that a layer leaves, from 1 down to the decay.
  static double share(double decay, int32_t layer, int32_t layers) {
    return (1 - decay) * (std::cos(std::numbers::pi * layer / layers) + 1) / 2 + decay;
  }
  // Returns: the factor of one of the newest queries: newer ones count more.
  float weight(int64_t place, int64_t of) const {
    if (of == 1) return 1;
    return static_cast<float>(1 + (newer_ - 1) * static_cast<double>(place) /
                                      static_cast<double>(of - 1));
  }

  void thin(int32_t layer, Cache& cache) {
    Layer& own = layers_[static_cast<size_t>(layer)];
    const HeadCache& any = cache.at(layer, 0);
    const int32_t end = any.size() - recent_;
    if (end - own.done < thinned_) return;
    std::vector<float> scores(static_cast<size_t>(thinned_));
    for (int32_t i = 0; i < thinned_; ++i) {
      const int32_t position = any.positions[static_cast<size_t>(end - thinned_ + i)];
      for (int64_t r = 0; r < std::ssize(own.rows); ++r) {
        scores[static_cast<size_t>(i)] +=
            weight(r, std::ssize(own.rows)) * own.rows[static_cast<size_t>(r)].to(position);
      }
    }
    const double left = thinned_ * later_share_ * share(later_decay_, layer, cache.shape.layers);
    std::vector<int32_t> kept(static_cast<size_t>(end - thinned_));
    std::iota(kept.begin(), kept.end(), 0);
    for (const int32_t i : largest(scores, std::max(1, static_cast<int32_t>(left)))) {
      kept.push_back(end - thinned_ + i);
    }
    own.done = static_cast<int32_t>(kept.size());
    for (int32_t i = end; i < end + recent_; ++i) kept.push_back(i);
    for (int32_t head = 0; head < cache.shape.kv_heads; ++head) cache.at(layer, head).keep(kept);
  }

  double recent_share_ = 0;
  double decay_ = 0;
  int32_t least_ = 0;  // tokens before the newest ones that a layer leaves
  int32_t sinks_ = 0;
  double newer_ = 0;  // weight of the newest query's attention; the oldest one's is 1
  double later_decay_ = 0;
  double later_share_ = 0;
  int32_t thinned_ = 0;  // tokens that are thinned together
  int32_t recent_ = 0;   // newest tokens, which stay
  std::vector<Layer> layers_;
};

}  // namespace tessera::lab
