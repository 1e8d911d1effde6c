#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/k_means.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Clusters keys by cosine similarity, and reads clusters in the order of their centroids' products
// with a query until the budget is full; the last one is cut (ClusterKV, sections III and IV). The
// first tokens are read always, and generated ones until enough of them make new clusters.
class ClusterKv final : public Cloned<ClusterKv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<ClusterKv>();
    method->budget_ = settings.number("budget", 0.2);
    method->sinks_ = settings.integer("sinks", 16);
    method->cluster_tokens_ = settings.integer("cluster", 80);
    method->generated_ = settings.integer("generated", 320);
    method->iterations_ = settings.integer("iterations", 10);
    method->full_layers_ = settings.integer("full_layers", 2);
    method->kv_heads_ = shape.kv_heads;
    method->heads_.resize(static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads));
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    tokens_ = static_cast<int32_t>(budget_ * prompt.size());
    add_all_tokens(prompt, cache);
    for_each_head(prompt, [&](int32_t layer, int32_t head) {
      if (layer < full_layers_) return;
      of(layer, head).clustered = std::min(sinks_, prompt.size());
      cluster(cache.at(layer, head), of(layer, head));
    });
  }

  std::optional<std::vector<int32_t>> choose(const Read& read, int32_t query,
                                             const HeadCache& head) override {
    if (read.layer < full_layers_) return std::nullopt;
    const Head& own = of(read.layer, read.kv_head);
    std::vector<float> products;
    for (int64_t i = 0; i < own.centroids.rows(); ++i) {
      products.push_back(dot(read.queries.row(query), own.centroids.row(i)));
    }
    std::vector<int32_t> order(products.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](int32_t i) { return products[static_cast<size_t>(i)]; });
    std::vector<int32_t> entries(static_cast<size_t>(std::min(sinks_, own.clustered)));
    std::iota(entries.begin(), entries.end(), 0);
    for (const int32_t cluster : order) {
      const std::vector<int32_t>& members = own.members[static_cast<size_t>(cluster)];
      const int64_t room = std::max<int64_t>(0, tokens_ - std::ssize(entries));
      entries.insert(entries.end(), members.begin(),
                     members.begin() + std::min<int64_t>(room, std::ssize(members)));
    }
    std::ranges::sort(entries);
    for (int32_t entry = own.clustered; entry < head.size(); ++entry) entries.push_back(entry);
    return entries;
  }

  void after_read(const Read& read, MatrixView<const float> /*weights*/, HeadCache& head) override {
    if (read.layer < full_layers_) return;
    Head& own = of(read.layer, read.kv_head);
    if (head.size() - own.clustered >= generated_) cluster(head, own);
  }

  // Counts all tokens and the centroids in f16, and each clustered token's index (int32).
  int64_t bytes(const Cache& cache) const override {
    int64_t all = Method::bytes(cache);
    for (const Head& own : heads_) {
      all += own.centroids.rows() * cache.shape.head_dim * 2 + int64_t{own.clustered} * 4;
    }
    return all;
  }

 private:
  struct Head {
    int32_t clustered = 0;  // entries before it are sinks, or members of clusters
    Rows centroids;
    std::vector<std::vector<int32_t>> members;  // of each cluster
  };

  Head& of(int32_t layer, int32_t kv_head) {
    return heads_[static_cast<size_t>(layer * kv_heads_ + kv_head)];
  }

  // Clusters the entries that are in no cluster yet.
  void cluster(const HeadCache& head, Head& own) const {
    const int32_t count = head.size() - own.clustered;
    if (count <= 0) return;
    const MatrixView<const float> keys = head.keys.view().rows_from(own.clustered, count);
    const Clusters made =
        k_means(keys, std::max(1, count / cluster_tokens_), iterations_, Distance::cosine);
    const size_t first = own.members.size();
    own.members.resize(first + made.sizes.size());
    for (int32_t i = 0; i < count; ++i) {
      const auto label = static_cast<size_t>(made.labels[static_cast<size_t>(i)]);
      own.members[first + label].push_back(own.clustered + i);
    }
    if (own.centroids.cols() == 0) own.centroids = Rows(keys.cols);
    own.centroids.add(made.centroids.view());
    own.clustered = head.size();
  }

  double budget_ = 0;
  int32_t sinks_ = 0;
  int32_t cluster_tokens_ = 0;  // of a cluster, on average
  int32_t generated_ = 0;       // tokens that make new clusters
  int32_t iterations_ = 0;
  int32_t full_layers_ = 0;
  int32_t kv_heads_ = 0;
  int32_t tokens_ = 0;  // that a query reads of the clustered ones
  std::vector<Head> heads_;
};

}  // namespace tessera::lab
