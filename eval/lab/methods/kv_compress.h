#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Evicts whole blocks of the least attended tokens, wherever in the model a block is cheapest
// (KV-Compress, KVC-w8-L2). A token's metric is the sum of the squared attention that the prompt's
// last queries of its head group pay to it, after max pooling. With window=0 it is KVC-full: all
// queries count that come at least `exclude` tokens later.
class KvCompress final : public Cloned<KvCompress> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<KvCompress>();
    method->budget_ = settings.number("budget", 0.2);
    method->window_ = settings.integer("window", 8);
    method->kernel_ = settings.integer("kernel", 7);
    method->exclude_ = settings.integer("exclude", 10);
    method->block_ = settings.integer("block", 16);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    const Shape& shape = prompt.shape;
    const int32_t heads = shape.layers * shape.kv_heads;
    std::vector<std::vector<float>> metrics(static_cast<size_t>(heads));
    for_each_head(prompt, [&](int32_t layer, int32_t kv_head) {
      metrics[static_cast<size_t>(layer * shape.kv_heads + kv_head)] =
          metrics_of(prompt, layer, kv_head);
    });
    const std::vector<int32_t> blocks = evicted_blocks(metrics, prompt.size());
    const int32_t empty = blocks_of(prompt.size()) * block_ - prompt.size();
    for (int32_t head = 0; head < heads; ++head) {
      const int32_t evicted = std::max(0, blocks[static_cast<size_t>(head)] * block_ - empty);
      const std::vector<int32_t> kept =
          largest(metrics[static_cast<size_t>(head)], prompt.size() - evicted);
      add_tokens(prompt, head / shape.kv_heads, head % shape.kv_heads, kept, cache);
    }
  }

  // Counts whole blocks in f16 with a metric (f32) and a logical index (int32) for each slot, and
  // a block table's entry for each block (sections 4.2.1 and 4.2.2).
  int64_t bytes(const Cache& cache) const override {
    const int64_t slot = int64_t{2} * 2 * cache.shape.head_dim + 4 + 4;
    int64_t all = 0;
    for (const HeadCache& head : cache.heads) {
      all += blocks_of(head.size()) * (block_ * slot + 4);
    }
    return all;
  }

 private:
  int32_t blocks_of(int32_t tokens) const { return static_cast<int32_t>(div_ceil(tokens, block_)); }

  // Returns: metrics of all tokens. Those that no query of the window may judge are never evicted.
  std::vector<float> metrics_of(const Prompt& prompt, int32_t layer, int32_t kv_head) const {
    const int32_t window = std::min(window_, prompt.size());
    const int32_t judged = prompt.size() - (window_ > 0 ? window : exclude_);
    std::vector<float> sums(static_cast<size_t>(std::max(judged, 0)));
    const int32_t group = prompt.shape.group();
    for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for_each_attention_row(prompt, layer, head, window_ > 0 ? judged : 0, prompt.size(),
                             [&](int32_t position, std::span<const float> row) {
                               const int32_t last = window_ > 0 ? judged : position + 1 - exclude_;
                               for (int32_t i = 0; i < std::min(last, judged); ++i) {
                                 const float weight = row[static_cast<size_t>(i)];
                                 sums[static_cast<size_t>(i)] += weight * weight;
                               }
                             });
    }
    std::vector<float> metrics = window_ > 0 ? max_pool(sums, kernel_) : sums;
    metrics.resize(static_cast<size_t>(prompt.size()), std::numeric_limits<float>::infinity());
    return metrics;
  }

  // Returns: the number of blocks that each head loses. A head's next block costs the largest
  // metric in it, where its tokens are sorted and the last block's empty slots come first (eq. 17).
  std::vector<int32_t> evicted_blocks(const std::vector<std::vector<float>>& metrics,
                                      int32_t tokens) const {
    struct Candidate {
      float metric = 0;
      size_t head = 0;
    };
    std::vector<Candidate> candidates;
    const int32_t blocks = blocks_of(tokens);
    const int32_t empty = blocks * block_ - tokens;
    for (size_t head = 0; head < metrics.size(); ++head) {
      std::vector<float> sorted = metrics[head];
      std::ranges::sort(sorted);
      for (int32_t evicted = 1; evicted < blocks; ++evicted) {
        candidates.push_back({sorted[static_cast<size_t>(evicted * block_ - empty - 1)], head});
      }
    }
    std::ranges::stable_sort(candidates, {}, &Candidate::metric);
    const auto all = static_cast<double>(metrics.size());
    const auto retained = static_cast<int64_t>(budget_ * tokens * all / block_);
    const int64_t excess = blocks * std::ssize(metrics) - retained;
    candidates.resize(static_cast<size_t>(std::clamp<int64_t>(excess, 0, std::ssize(candidates))));
    std::vector<int32_t> lost(metrics.size());
    for (const Candidate& candidate : candidates) ++lost[candidate.head];
    return lost;
  }

  double budget_ = 0;
  int32_t window_ = 0;
  int32_t kernel_ = 0;
  int32_t exclude_ = 0;
  int32_t block_ = 0;
};

}  // namespace tessera::lab
