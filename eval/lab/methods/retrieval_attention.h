#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Reads the first and the newest tokens, and of the others those whose keys have the largest
// products with a query (RetrievalAttention, algorithm 1). Each query head searches alone.
class RetrievalAttention final : public Cloned<RetrievalAttention> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<RetrievalAttention>();
    method->budget_ = settings.number("budget", 0.2);
    method->sinks_ = settings.integer("sinks", 16);
    method->local_ = settings.integer("local", 64);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    tokens_ = static_cast<int32_t>(budget_ * prompt.size());
    add_all_tokens(prompt, cache);
  }

  std::optional<std::vector<int32_t>> choose(const Read& read, int32_t query,
                                             const HeadCache& head) override {
    std::vector<float> scores(static_cast<size_t>(head.size()),
                              std::numeric_limits<float>::infinity());
    for (int32_t entry = sinks_; entry < head.size() - local_; ++entry) {
      scores[static_cast<size_t>(entry)] = dot(read.queries.row(query), head.keys.row(entry));
    }
    return largest(scores, std::max(tokens_, sinks_ + local_));
  }

  // Counts all tokens in f16, and the index as a graph that holds 32 neighbours (int32) of each
  // token for every query head.
  int64_t bytes(const Cache& cache) const override {
    constexpr int64_t kNeighbours = 32;
    return Method::bytes(cache) + cache.entries() * cache.shape.group() * kNeighbours * 4;
  }

 private:
  double budget_ = 0;
  int32_t sinks_ = 0;
  int32_t local_ = 0;
  int32_t tokens_ = 0;  // that a query reads
};

}  // namespace tessera::lab
