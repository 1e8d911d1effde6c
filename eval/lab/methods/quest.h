#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Reads the pages of tokens whose keys may have the largest products with a query (Quest, section
// 3.3 and algorithm 1). A page's bound takes the larger of each channel's products with the page's
// least and largest key. The first layers read everything.
class Quest final : public Cloned<Quest> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<Quest>();
    method->budget_ = settings.number("budget", 0.2);
    method->page_ = settings.integer("page", 16);
    method->full_layers_ = settings.integer("full_layers", 2);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    tokens_ = static_cast<int32_t>(budget_ * prompt.size());
    add_all_tokens(prompt, cache);
  }

  std::optional<std::vector<int32_t>> choose(const Read& read, int32_t query,
                                             const HeadCache& head) override {
    if (read.layer < full_layers_) return std::nullopt;
    std::vector<float> bounds;
    for (int32_t first = 0; first < head.size(); first += page_) {
      bounds.push_back(bound(read.queries.row(query), head, first));
    }
    bounds.back() = std::numeric_limits<float>::infinity();
    std::vector<int32_t> entries;
    for (const int32_t page : largest(bounds, std::max(3, tokens_ / page_))) {
      const int32_t end = std::min(head.size(), (page + 1) * page_);
      for (int32_t entry = page * page_; entry < end; ++entry) entries.push_back(entry);
    }
    return entries;
  }

  // Counts all tokens and two keys for each page, in f16.
  int64_t bytes(const Cache& cache) const override {
    int64_t all = Method::bytes(cache);
    for (const HeadCache& head : cache.heads) {
      all += div_ceil(head.size(), page_) * 2 * cache.shape.head_dim * 2;
    }
    return all;
  }

 private:
  float bound(std::span<const float> query, const HeadCache& head, int32_t first) const {
    const int32_t end = std::min(head.size(), first + page_);
    std::vector<float> most(query.size(), -std::numeric_limits<float>::infinity());
    for (int32_t entry = first; entry < end; ++entry) {
      const std::span<const float> key = head.keys.row(entry);
      for (size_t i = 0; i < query.size(); ++i) most[i] = std::max(most[i], query[i] * key[i]);
    }
    float sum = 0;
    for (const float product : most) sum += product;
    return sum;
  }

  double budget_ = 0;
  int32_t page_ = 0;
  int32_t full_layers_ = 0;
  int32_t tokens_ = 0;
};

}  // namespace tessera::lab
