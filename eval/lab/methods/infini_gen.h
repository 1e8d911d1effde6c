#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/directions.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera::lab {

// Reads the tokens that a rehearsal in the layer before finds (InfiniGen, section 4). The rehearsal
// multiplies the layer before's input by a part of this layer's query weights, and that by a part
// of its keys. A rotation by the queries' singular vectors makes few channels tell the most. All
// heads of a layer read as many tokens as come near the largest product, on average.
class InfiniGen final : public Cloned<InfiniGen> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& shape) {
    auto method = std::make_unique<InfiniGen>();
    method->budget_ = settings.number("budget", 0.2);
    method->alpha_ = static_cast<float>(settings.number("alpha", 5));
    method->channels_ = settings.number("channels", 0.3);
    method->shape_ = shape;
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    model_ = &model;
    const std::shared_ptr<const Prompt> prompt = model.prompt(tokens);
    add_all_tokens(*prompt, cache);
    heads_.resize(static_cast<size_t>(shape_.layers) * static_cast<size_t>(shape_.heads));
    model.pool().parallel_for(std::ssize(heads_), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t head = begin; head < end; ++head) prepare(*prompt, static_cast<int32_t>(head));
    });
    return prompt->logits;
  }

  void before_read(const LayerStep& step, Cache& cache) override {
    const int32_t next = step.layer + 1;
    const int32_t entries = cache.at(step.layer, 0).size();
    for (int32_t query = 0; query < shape_.heads; ++query) {
      const auto column = int64_t{query / shape_.group()} * shape_.head_dim;
      Head& head = of(step.layer, query);
      head.keys.add(partial(head, step.keys.columns(column, shape_.head_dim).row(0)));
    }
    if (next < shape_.layers) rehearse(step, next, entries - 1);
  }

  std::optional<std::vector<int32_t>> choose(const Read& read, int32_t query,
                                             const HeadCache& head) override {
    if (read.layer == 0) return std::nullopt;
    std::vector<int32_t> entries = of(read.layer, read.kv_head * shape_.group() + query).chosen;
    entries.push_back(head.size() - 1);
    return entries;
  }

  // Counts all tokens, and for each query head the partial query weights and keys, in f16.
  int64_t bytes(const Cache& cache) const override {
    int64_t all = Method::bytes(cache);
    for (const Head& head : heads_) {
      all += (head.keys.rows() + int64_t{model_->config().hidden}) * head.keys.cols() * 2;
    }
    return all;
  }

 private:
  struct Head {
    Rows directions;              // that are kept, [channels, head_dim]
    Rows keys;                    // in these directions, [entries, channels]
    std::vector<int32_t> chosen;  // entries to read in this step
  };

  Head& of(int32_t layer, int32_t query) {
    return heads_[static_cast<size_t>(layer * shape_.heads + query)];
  }

  static std::vector<float> partial(const Head& head, std::span<const float> row) {
    std::vector<float> products;
    for (int64_t i = 0; i < head.directions.rows(); ++i) {
      products.push_back(dot(head.directions.row(i), row));
    }
    return products;
  }

  // Keeps the directions in which the prompt's queries and keys have the largest magnitudes.
  void prepare(const Prompt& prompt, int32_t index) {
    const LayerPrompt& layer = prompt.layers[static_cast<size_t>(index / shape_.heads)];
    const int32_t query = index % shape_.heads;
    const MatrixView<const float> queries = layer.queries_of(shape_, query);
    const MatrixView<const float> keys = layer.keys_of(shape_, query / shape_.group());
    const Rows all = leading_directions(queries, shape_.head_dim);
    std::vector<float> sums(static_cast<size_t>(all.rows()));
    for (int32_t token = 0; token < prompt.size(); ++token) {
      for (size_t i = 0; i < sums.size(); ++i) {
        const std::span<const float> direction = all.row(static_cast<int64_t>(i));
        sums[i] += std::fabs(dot(direction, queries.row(token))) +
                   std::fabs(dot(direction, keys.row(token)));
      }
    }
    Head& head = heads_[static_cast<size_t>(index)];
    head.directions = all;
    head.directions.keep(largest(sums, static_cast<int32_t>(channels_ * shape_.head_dim)));
    head.keys = Rows(head.directions.rows());
    for (int32_t token = 0; token < prompt.size(); ++token) {
      head.keys.add(partial(head, keys.row(token)));
    }
  }

  // Chooses what the next layer reads of the entries before the token's own.
  void rehearse(const LayerStep& step, int32_t next, int32_t entries) {
    Rows input(step.input.cols);
    input.add(step.input);
    Rows queries = model_->project(next, input).queries_before;
    model_->rotate(next, step.first, queries.row(0));
    std::vector<std::vector<float>> logits;
    double near = 0;
    for (int32_t query = 0; query < shape_.heads; ++query) {
      const Head& head = of(next, query);
      const auto dim = static_cast<size_t>(shape_.head_dim);
      const std::vector<float> own = partial(
          head, std::as_const(queries).row(0).subspan(static_cast<size_t>(query) * dim, dim));
      std::vector<float>& of_head = logits.emplace_back();
      for (int32_t entry = 0; entry < entries; ++entry) {
        of_head.push_back(step.scale * dot(own, head.keys.row(entry)));
      }
      const float least = *std::ranges::max_element(of_head) - alpha_;
      near += static_cast<double>(
          std::ranges::count_if(of_head, [&](float logit) { return logit >= least; }));
    }
    const auto count = std::min(static_cast<int32_t>(near / shape_.heads),
                                static_cast<int32_t>(budget_ * entries));
    for (int32_t query = 0; query < shape_.heads; ++query) {
      of(next, query).chosen = largest(logits[static_cast<size_t>(query)], std::max(1, count));
    }
  }

  double budget_ = 0;
  float alpha_ = 0;      // in nats below the largest product
  double channels_ = 0;  // as a share of the head's
  Shape shape_;
  Model* model_ = nullptr;
  std::vector<Head> heads_;  // [layers * heads]
};

}  // namespace tessera::lab
