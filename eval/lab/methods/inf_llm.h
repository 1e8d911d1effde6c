#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera::lab {

// Reads the first tokens, a local window, and the blocks of older tokens that are most relevant to
// the current ones (InfLLM, section 3). A block's representatives are its tokens that the queries
// of their local window attended to most; all heads of a layer choose blocks together. Tokens
// behind the window have one distance, that of its far end. Prompts are computed so too, in chunks.
class InfLlm final : public Cloned<InfLlm> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<InfLlm>();
    method->budget_ = settings.number("budget", 0.25);
    method->block_ = settings.integer("block", 16);
    method->representatives_ = settings.integer("representatives", 4);
    method->chunk_ = settings.integer("chunk", 128);
    method->shape_ = shape;
    method->layers_.resize(static_cast<size_t>(shape.layers));
    for (Layer& layer : method->layers_) {
      layer.keys_before = Rows(int64_t{shape.kv_heads} * shape.head_dim);
      layer.representatives = Rows(int64_t{shape.heads} * shape.head_dim);
      layer.scores.resize(static_cast<size_t>(shape.heads));
    }
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    model_ = &model;
    const double read = budget_ * static_cast<double>(tokens.size());
    first_ = std::max(1, static_cast<int32_t>(kFirstShare * read));
    window_ = std::max(1, static_cast<int32_t>(kWindowShare * read));
    blocks_ = std::max(1, static_cast<int32_t>((1 - kFirstShare - kWindowShare) * read) / block_);
    Chunk handler(*this, cache);
    std::vector<float> logits;
    const auto size = static_cast<int32_t>(tokens.size());
    for (int32_t first = 0; first < size; first += chunk_) {
      const int32_t count = std::min(chunk_, size - first);
      logits = model.compute(tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                             first, handler);
      form_blocks(first + count);
    }
    return logits;
  }

  void before_read(const LayerStep& step, Cache& cache) override {
    begin(step);
    for (int32_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
      move_old_keys(step.layer, kv_head, step.first, cache);
    }
  }

  std::optional<std::vector<int32_t>> choose(const Read& read, int32_t /*query*/,
                                             const HeadCache& /*head*/) override {
    return entries(read.layer, read.position);
  }

  void after_read(const Read& read, MatrixView<const float> weights, HeadCache& /*head*/) override {
    for (int32_t query = 0; query < shape_.group(); ++query) {
      note(read.layer, read.kv_head * shape_.group() + query, read.position, weights.row(query));
    }
  }

  void after_token(Cache& cache) override { form_blocks(cache.tokens); }

  // Counts all tokens and each block's representative keys, in f16.
  int64_t bytes(const Cache& cache) const override {
    int64_t all = Method::bytes(cache);
    for (const Layer& layer : layers_) {
      all +=
          layer.representatives.rows() * shape_.kv_heads * representatives_ * shape_.head_dim * 2;
    }
    return all;
  }

 private:
  // The paper reads 128 first tokens, 4,096 of the window and 16 blocks of 128.
  static constexpr double kFirstShare = 128.0 / 6272;
  static constexpr double kWindowShare = 4096.0 / 6272;

  struct Layer {
    Rows keys_before;                        // before RoPE, of all tokens
    std::vector<std::vector<float>> scores;  // of each query head's tokens, until in a block
    Rows representatives;                    // of each block: means of query heads' keys
    std::vector<int32_t> chosen;             // blocks
  };

  // A chunk of a prompt in one layer.
  class Chunk final : public LayerHandler {
   public:
    Chunk(InfLlm& method, Cache& cache) : method_(method), cache_(cache) {}

    void attend(const LayerStep& step) override {
      method_.begin(step);
      method_.model_->pool().parallel_for(method_.shape_.kv_heads, 1,
                                          [&](int64_t begin, int64_t end, int /*worker*/) {
                                            for (int64_t head = begin; head < end; ++head) {
                                              attend(step, static_cast<int32_t>(head));
                                            }
                                          });
    }

   private:
    void attend(const LayerStep& step, int32_t kv_head) {
      const Shape& shape = method_.shape_;
      const int32_t dim = shape.head_dim;
      HeadCache& head = cache_.at(step.layer, kv_head);
      for (int64_t row = 0; row < step.keys.rows; ++row) {
        head.add(step.first + static_cast<int32_t>(row),
                 step.keys.columns(int64_t{kv_head} * dim, dim).row(row),
                 step.values.columns(int64_t{kv_head} * dim, dim).row(row));
        const int32_t position = step.first + static_cast<int32_t>(row);
        method_.move_old_keys(step.layer, kv_head, position, cache_);
        const std::vector<int32_t> read = method_.entries(step.layer, position);
        for (int32_t query = kv_head * shape.group(); query < (kv_head + 1) * shape.group();
             ++query) {
          const int64_t column = int64_t{query} * dim;
          const Rows weights =
              attend_cache(step.queries.columns(column, dim).rows_from(row, 1), step.scale, head,
                           read, step.out.columns(column, dim).rows_from(row, 1));
          std::vector<float> of_all(static_cast<size_t>(head.size()));
          for (size_t i = 0; i < read.size(); ++i) {
            of_all[static_cast<size_t>(read[i])] = weights.row(0)[i];
          }
          method_.note(step.layer, query, position, of_all);
        }
      }
    }

    InfLlm& method_;
    Cache& cache_;
  };

  Layer& of(int32_t layer) { return layers_[static_cast<size_t>(layer)]; }

  // Returns: the first entry that is in no block and not among the first tokens.
  int32_t blocks_end(const Layer& layer) const {
    return first_ + static_cast<int32_t>(layer.representatives.rows()) * block_;
  }

  // Stores the step's keys before RoPE, and chooses blocks by the mean query at the window's end.
  void begin(const LayerStep& step) {
    Layer& layer = of(step.layer);
    layer.keys_before.add(step.keys_before);
    std::vector<float> mean(static_cast<size_t>(step.queries.cols));
    for (int64_t row = 0; row < step.queries.rows; ++row) {
      std::vector<float> query(step.queries.row(row).begin(), step.queries.row(row).end());
      model_->rotate_back(step.layer, step.first + static_cast<int32_t>(row), query);
      add_scaled(mean, 1 / static_cast<float>(step.queries.rows), query);
    }
    model_->rotate(step.layer, window_, mean);
    std::vector<float> relevance;
    for (int64_t block = 0; block < layer.representatives.rows(); ++block) {
      relevance.push_back(dot(mean, layer.representatives.row(block)));
    }
    layer.chosen = largest(relevance, blocks_);
  }

  // Gives the tokens that a query at `position` may read behind the window the window's distance.
  void move_old_keys(int32_t layer, int32_t kv_head, int32_t position, Cache& cache) {
    const int32_t local = position + 1 - window_;
    const auto dim = static_cast<size_t>(shape_.head_dim);
    for (const int32_t entry : entries(layer, position)) {
      if (entry >= local) break;
      const std::span<float> key = cache.at(layer, kv_head).keys.row(entry);
      std::ranges::copy(
          of(layer).keys_before.row(entry).subspan(static_cast<size_t>(kv_head) * dim, dim),
          key.begin());
      model_->rotate(layer, position - window_, key);
    }
  }

  // Returns: what a query at `position` reads, ascending.
  std::vector<int32_t> entries(int32_t layer, int32_t position) {
    std::vector<int32_t> all(static_cast<size_t>(std::min(first_, position + 1)));
    std::iota(all.begin(), all.end(), 0);
    for (const int32_t block : of(layer).chosen) {
      for (int32_t i = 0; i < block_; ++i) all.push_back(first_ + block * block_ + i);
    }
    for (int32_t entry = blocks_end(of(layer)); entry <= position; ++entry) all.push_back(entry);
    return all;
  }

  // Adds a query's attention to the scores of the tokens in its local window.
  void note(int32_t layer, int32_t head, int32_t position, std::span<const float> weights) {
    std::vector<float>& scores = of(layer).scores[static_cast<size_t>(head)];
    scores.resize(static_cast<size_t>(position) + 1);
    for (int32_t i = std::max(0, position + 1 - window_); i < position; ++i) {
      scores[static_cast<size_t>(i)] += weights[static_cast<size_t>(i)];
    }
  }

  // Makes blocks of the tokens that no local window of tokens from `next` on has.
  void form_blocks(int32_t next) {
    for (Layer& layer : layers_) {
      for (int32_t first = blocks_end(layer); first + block_ <= next + 1 - window_;
           first += block_) {
        std::vector<float> row(static_cast<size_t>(shape_.heads * shape_.head_dim));
        for (int32_t head = 0; head < shape_.heads; ++head) represent(layer, first, head, row);
        layer.representatives.add(row);
      }
    }
  }

  void represent(const Layer& layer, int32_t first, int32_t head, std::span<float> row) const {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const auto scores = std::span(layer.scores[static_cast<size_t>(head)])
                            .subspan(static_cast<size_t>(first), static_cast<size_t>(block_));
    const std::vector<int32_t> best = largest(scores, representatives_);
    for (const int32_t i : best) {
      const auto column = static_cast<size_t>(head / shape_.group()) * dim;
      add_scaled(row.subspan(static_cast<size_t>(head) * dim, dim),
                 1 / static_cast<float>(best.size()),
                 layer.keys_before.row(first + i).subspan(column, dim));
    }
  }

  double budget_ = 0;
  int32_t block_ = 0;            // tokens
  int32_t representatives_ = 0;  // tokens of a block
  int32_t chunk_ = 0;            // tokens
  int32_t first_ = 0;            // tokens
  int32_t window_ = 0;           // tokens
  int32_t blocks_ = 0;           // that are read
  Shape shape_;
  Model* model_ = nullptr;
  std::vector<Layer> layers_;
};

}  // namespace tessera::lab
