#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/k_means.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "text/tokenizer.h"

namespace tessera::lab {

// Keeps a cache for each topic of the prompt, and reads that of the topic nearest to the question
// (EpiCache, section 3). Windows of the prompt are clustered by their embeddings. For each cluster
// the prompt is computed in blocks, and after each block the tokens stay that a request with the
// cluster's medoid attends to, so that the cache never grows beyond the budget and a block.
class EpiCache final : public Cloned<EpiCache> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<EpiCache>();
    method->budget_ = settings.number("budget", 0.2);
    method->episodes_ = std::max(1, settings.integer("episodes", 4));
    method->medoids_ = settings.integer("medoids", 1);
    method->window_ = settings.integer("window", 64);
    method->block_ = settings.integer("block", 512);
    method->sinks_ = settings.integer("sinks", 4);
    method->shape_ = shape;
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    const Rows windows = embeddings(model, tokens);
    const auto count = static_cast<int32_t>(std::min<int64_t>(episodes_, windows.rows()));
    const Clusters clusters = k_means(windows.view(), count, 100, Distance::euclidean);
    centroids_ = clusters.centroids;
    question_ = std::vector<float>(static_cast<size_t>(windows.cols()));
    ranges_.assign(cache.heads.size(), std::vector<int32_t>{0});
    std::vector<float> logits;
    for (int32_t episode = 0; episode < count; ++episode) {
      Cache own(shape_);
      logits =
          compute_episode(model, tokens, request(model, tokens, windows, clusters, episode), own);
      for (size_t i = 0; i < own.heads.size(); ++i) {
        const HeadCache& from = own.heads[i];
        for (int32_t entry = 0; entry < from.size(); ++entry) {
          cache.heads[i].add(from.positions[static_cast<size_t>(entry)], from.keys.row(entry),
                             from.values.row(entry));
        }
        ranges_[i].push_back(cache.heads[i].size());
      }
    }
    return logits;
  }

  // The question is what comes behind the prompt. Its embedding is the mean of its tokens so far.
  void before_read(const LayerStep& step, Cache& /*cache*/) override {
    if (step.layer > 0) return;
    add_scaled(question_, 1, step.input.row(0));
    Rows question(std::ssize(question_));
    question.add(question_);
    question = unit_rows(std::as_const(question).view());
    std::vector<float> similarities;
    for (int64_t i = 0; i < centroids_.rows(); ++i) {
      similarities.push_back(dot(question.row(0), centroids_.row(i)));
    }
    episode_ = largest(similarities, 1).front();
  }

  std::optional<std::vector<int32_t>> choose(const Read& read, int32_t /*query*/,
                                             const HeadCache& head) override {
    const std::vector<int32_t>& ends =
        ranges_[static_cast<size_t>(read.layer * shape_.kv_heads + read.kv_head)];
    const auto episode = static_cast<size_t>(episode_);
    std::vector<int32_t> entries(static_cast<size_t>(ends[episode + 1] - ends[episode]));
    std::iota(entries.begin(), entries.end(), ends[episode]);
    for (int32_t entry = ends.back(); entry < head.size(); ++entry) entries.push_back(entry);
    return entries;
  }

 private:
  // Attends to a cache and to the step itself. A block is added to the cache; of a request, the
  // largest attention that each entry gets is noted.
  class Blocks final : public LayerHandler {
   public:
    Blocks(Model& model, Cache& cache) : model_(model), cache_(cache) {}

    bool notes = false;
    std::vector<std::vector<float>> scores{};  // [layers * kv_heads], of entries

    void attend(const LayerStep& step) override {
      const Shape& shape = cache_.shape;
      scores.resize(cache_.heads.size());
      model_.pool().parallel_for(shape.kv_heads, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t head = begin; head < end; ++head) attend(step, static_cast<int32_t>(head));
      });
    }

   private:
    void attend(const LayerStep& step, int32_t kv_head) {
      const Shape& shape = cache_.shape;
      const int32_t dim = shape.head_dim;
      HeadCache& head = cache_.at(step.layer, kv_head);
      const int32_t before = head.size();
      std::vector<float>& noted =
          scores[static_cast<size_t>(step.layer * shape.kv_heads + kv_head)];
      noted.resize(static_cast<size_t>(before));
      for (int64_t row = 0; row < step.keys.rows; ++row) {
        head.add(step.first + static_cast<int32_t>(row),
                 step.keys.columns(int64_t{kv_head} * dim, dim).row(row),
                 step.values.columns(int64_t{kv_head} * dim, dim).row(row));
        for (int32_t query = kv_head * shape.group(); query < (kv_head + 1) * shape.group();
             ++query) {
          const int64_t column = int64_t{query} * dim;
          const MatrixView<const float> own = step.queries.columns(column, dim).rows_from(row, 1);
          const Rows weights = attend_cache(own, step.scale, head, std::nullopt,
                                            step.out.columns(column, dim).rows_from(row, 1));
          if (notes) note(weights.row(0), noted);
        }
      }
      if (!notes) return;
      std::vector<int32_t> kept(static_cast<size_t>(before));
      std::iota(kept.begin(), kept.end(), 0);
      head.keep(kept);
    }

    // The softmax of a score is over the entries before the request alone.
    static void note(std::span<const float> weights, std::vector<float>& noted) {
      const std::span<const float> before = weights.first(noted.size());
      const double all = std::accumulate(before.begin(), before.end(), 0.0);
      for (size_t i = 0; i < noted.size(); ++i) {
        noted[i] = std::max(noted[i], static_cast<float>(double{before[i]} / all));
      }
    }

    Model& model_;
    Cache& cache_;
  };

  // Returns: each window's mean input of the first layer, divided by its norm.
  Rows embeddings(Model& model, std::span<const int32_t> tokens) const {
    const Rows& input = model.prompt(tokens)->layers.front().input;
    Rows means(input.cols());
    for (int64_t first = 0; first < input.rows(); first += window_) {
      std::vector<float> sum(static_cast<size_t>(input.cols()));
      for (int64_t i = first; i < std::min<int64_t>(first + window_, input.rows()); ++i) {
        add_scaled(sum, 1, input.row(i));
      }
      means.add(sum);
    }
    return unit_rows(std::as_const(means).view());
  }

  // Returns: the request with the windows nearest to the cluster's centroid.
  std::vector<int32_t> request(const Model& model, std::span<const int32_t> tokens,
                               const Rows& windows, const Clusters& clusters,
                               int32_t episode) const {
    std::vector<int32_t> ids;
    if (model.tokenizer != nullptr) {
      const TextSegment segment{
          .text = "\n\nExtract essential information from this conversation segment.\n"};
      ids = model.tokenizer->encode({&segment, 1}, false);
    }
    const Rows centroids = unit_rows(clusters.centroids.view());
    std::vector<float> similarities;
    std::vector<int32_t> members;
    for (int32_t i = 0; i < windows.rows(); ++i) {
      if (clusters.labels[static_cast<size_t>(i)] != episode) continue;
      members.push_back(i);
      similarities.push_back(dot(windows.row(i), centroids.row(episode)));
    }
    for (const int32_t i : largest(similarities, medoids_)) {
      const int32_t first = members[static_cast<size_t>(i)] * window_;
      const auto end = std::min(first + window_, static_cast<int32_t>(tokens.size()));
      ids.insert(ids.end(), tokens.begin() + first, tokens.begin() + end);
    }
    return ids;
  }

  std::vector<float> compute_episode(Model& model, std::span<const int32_t> tokens,
                                     const std::vector<int32_t>& request, Cache& cache) const {
    std::vector<float> logits;
    Blocks blocks(model, cache);
    const auto size = static_cast<int32_t>(tokens.size());
    const auto kept = static_cast<int32_t>(budget_ * size);
    for (int32_t first = 0; first < size; first += block_) {
      const int32_t count = std::min(block_, size - first);
      blocks.notes = false;
      logits = model.compute(tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                             first, blocks);
      blocks.notes = true;
      blocks.scores.clear();
      model.compute(request, first + count, blocks);
      for (int32_t layer = 0; layer < shape_.layers; ++layer) {
        evict(layer, kept, blocks.scores, cache);
      }
    }
    return logits;
  }

  // Keeps the best entries of a layer's heads together, and the prompt's first tokens.
  void evict(int32_t layer, int32_t kept, const std::vector<std::vector<float>>& scores,
             Cache& cache) const {
    std::vector<float> all;
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const std::vector<float>& own = scores[static_cast<size_t>(layer * shape_.kv_heads + head)];
      for (size_t i = 0; i < own.size(); ++i) {
        all.push_back(i < static_cast<size_t>(sinks_) ? 2 : own[i]);
      }
    }
    std::vector<std::vector<int32_t>> of_heads(static_cast<size_t>(shape_.kv_heads));
    for (const int32_t i : largest(all, kept * shape_.kv_heads)) {
      int32_t entry = i;
      int32_t head = 0;
      while (entry >= cache.at(layer, head).size()) entry -= cache.at(layer, head++).size();
      of_heads[static_cast<size_t>(head)].push_back(entry);
    }
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      cache.at(layer, head).keep(of_heads[static_cast<size_t>(head)]);
    }
  }

  double budget_ = 0;
  int32_t episodes_ = 0;
  int32_t medoids_ = 0;  // windows of a request
  int32_t window_ = 0;   // tokens
  int32_t block_ = 0;    // tokens
  int32_t sinks_ = 0;
  Shape shape_;
  int32_t episode_ = 0;          // that is read
  Rows centroids_;               // [episodes, hidden]
  std::vector<float> question_;  // sum of its tokens' embeddings
  std::vector<std::vector<int32_t>>
      ranges_;  // of each head: where episodes begin, and the last end
};

}  // namespace tessera::lab
