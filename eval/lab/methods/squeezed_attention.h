#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/k_means.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Clusters the prompt's keys by direction, and reads the clusters whose centroids may get more
// attention than a threshold (SqueezedAttention, section 3 and equation 1). One threshold for all
// heads is chosen so that the prompt's last queries read the budget. Those last tokens are read
// always.
class SqueezedAttention final : public Cloned<SqueezedAttention> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<SqueezedAttention>();
    method->budget_ = settings.number("budget", 0.2);
    method->clusters_ = settings.number("clusters", 0.05);
    method->window_ = settings.integer("window", 100);
    method->iterations_ = settings.integer("iterations", 20);
    method->kv_heads_ = shape.kv_heads;
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    clustered_ = std::max(prompt.size() - window_, prompt.size() / 2);
    heads_.resize(cache.heads.size());
    if (clustered_ == 0) return;  // a prompt of one token
    const int32_t count =
        std::clamp(static_cast<int32_t>(clusters_ * prompt.size()), 1, clustered_);
    for_each_head(prompt, [&](int32_t layer, int32_t head) {
      const MatrixView<const float> keys = prompt.layers[static_cast<size_t>(layer)]
                                               .keys_of(prompt.shape, head)
                                               .first_rows(clustered_);
      Clusters& own = heads_[static_cast<size_t>(layer * kv_heads_ + head)];
      own = k_means(unit_rows(keys).view(), count, iterations_, Distance::euclidean);
      own.centroids = means(keys, own);
    });
    threshold_ = threshold(prompt);
  }

  std::optional<std::vector<int32_t>> choose(const Read& read, int32_t query,
                                             const HeadCache& head) override {
    const Clusters& own = heads_[static_cast<size_t>(read.layer * kv_heads_ + read.kv_head)];
    const std::vector<float> scores = scores_of(read.queries.row(query), read.scale, own);
    std::vector<int32_t> entries;
    for (int32_t entry = 0; entry < head.size(); ++entry) {
      if (entry >= clustered_ || score_of(entry, scores, own) > threshold_) {
        entries.push_back(entry);
      }
    }
    return entries;
  }

  // Counts all tokens and the centroids in f16, and each clustered token's label (int32).
  int64_t bytes(const Cache& cache) const override {
    int64_t all = Method::bytes(cache);
    for (const Clusters& own : heads_) {
      all += own.centroids.rows() * cache.shape.head_dim * 2 + std::ssize(own.labels) * 4;
    }
    return all;
  }

 private:
  static Rows means(MatrixView<const float> keys, const Clusters& of) {
    Rows made(of.centroids.rows(), keys.cols);
    for (int64_t token = 0; token < keys.rows; ++token) {
      const int32_t label = of.labels[static_cast<size_t>(token)];
      add_scaled(made.row(label), 1 / static_cast<float>(of.sizes[static_cast<size_t>(label)]),
                 keys.row(token));
    }
    return made;
  }

  // Returns: the attention that one key at each centroid would get (equation 1).
  static std::vector<float> scores_of(std::span<const float> query, float scale,
                                      const Clusters& clusters) {
    std::vector<float> scores;
    for (int64_t i = 0; i < clusters.centroids.rows(); ++i) {
      scores.push_back(scale * dot(query, clusters.centroids.row(i)));
    }
    const float most = *std::ranges::max_element(scores);
    double sum = 0;
    for (size_t i = 0; i < scores.size(); ++i) {
      scores[i] = std::exp(scores[i] - most);
      sum += double{scores[i]} * clusters.sizes[i];
    }
    for (float& score : scores) score = static_cast<float>(double{score} / sum);
    return scores;
  }

  static float score_of(int32_t token, const std::vector<float>& scores, const Clusters& clusters) {
    return scores[static_cast<size_t>(clusters.labels[static_cast<size_t>(token)])];
  }

  // Returns: the quantile of all tokens' mean scores above which the budget's share lies.
  float threshold(const Prompt& prompt) const {
    std::vector<float> all;
    const Shape& shape = prompt.shape;
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
      const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
      for (int32_t head = 0; head < shape.heads; ++head) {
        const Clusters& own = heads_[static_cast<size_t>(layer * kv_heads_ + head / shape.group())];
        std::vector<float> mean(own.sizes.size());
        const MatrixView<const float> queries = from.queries_of(shape, head);
        for (int32_t token = clustered_; token < prompt.size(); ++token) {
          add_scaled(mean, 1 / static_cast<float>(prompt.size() - clustered_),
                     scores_of(queries.row(token), from.scale, own));
        }
        for (int32_t token = 0; token < clustered_; ++token) {
          all.push_back(score_of(token, mean, own));
        }
      }
    }
    std::ranges::sort(all);
    const double place = (1 - budget_) * static_cast<double>(all.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, all.size() - 1);
    return std::lerp(all[below], all[above], static_cast<float>(place - std::floor(place)));
  }

  double budget_ = 0;
  double clusters_ = 0;  // as a share of the prompt's tokens
  int32_t window_ = 0;
  int32_t iterations_ = 0;
  int32_t kv_heads_ = 0;
  int32_t clustered_ = 0;  // tokens
  float threshold_ = 0;
  std::vector<Clusters> heads_;  // [layers * kv_heads]
};

}  // namespace tessera::lab
