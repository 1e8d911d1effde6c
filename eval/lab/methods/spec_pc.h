#pragma once

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera::lab {

// Shortens the prompt to the tokens that a small model's last queries attend to, with their
// neighbours, before the large model computes it (SpecPC of Draft-based Approximate Inference,
// algorithm 2). A score is the largest attention over the later layers, heads and queries, of
// which the last weighs most. The large model sees the tokens at consecutive positions.
class SpecPc final : public Cloned<SpecPc> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<SpecPc>();
    method->budget_ = settings.number("budget", 0.3);
    method->window_ = settings.integer("window", 64);
    method->kernel_ = settings.integer("kernel", 64);
    method->neighbours_ = settings.integer("neighbours", 64);
    method->first_layer_ = settings.integer("first_layer", 8);
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    std::vector<int32_t> shorter;
    for (const int32_t token : kept_tokens(*model.draft, tokens)) {
      shorter.push_back(tokens[static_cast<size_t>(token)]);
    }
    const std::shared_ptr<const Prompt> prompt = model.prompt(shorter);
    // Later tokens have positions behind the whole prompt, so the kept ones end there.
    const auto shift = static_cast<int32_t>(tokens.size() - shorter.size());
    const Shape& shape = prompt->shape;
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
      const LayerPrompt& from = prompt->layers[static_cast<size_t>(layer)];
      for (int32_t i = 0; i < prompt->size(); ++i) {
        std::vector<float> keys(from.keys_before.row(i).begin(), from.keys_before.row(i).end());
        model.rotate(layer, i + shift, keys);
        for (int32_t head = 0; head < shape.kv_heads; ++head) {
          const auto dim = static_cast<size_t>(shape.head_dim);
          cache.at(layer, head)
              .add(i + shift, std::span(keys).subspan(static_cast<size_t>(head) * dim, dim),
                   from.values_of(shape, head).row(i));
        }
      }
    }
    return prompt->logits;
  }

 private:
  std::vector<float> scores_of(Model& draft, std::span<const int32_t> tokens) const {
    const std::shared_ptr<const Prompt> prompt = draft.prompt(tokens);
    const int32_t window = std::min(window_, prompt->size());
    const int32_t begin = prompt->size() - window;
    const int32_t first_layer = std::min(first_layer_, prompt->shape.layers - 1);
    const int32_t heads = (prompt->shape.layers - first_layer) * prompt->shape.heads;
    std::vector<std::vector<float>> of_heads(static_cast<size_t>(heads));
    draft.pool().parallel_for(heads, 1, [&](int64_t first, int64_t end, int /*worker*/) {
      for (int64_t i = first; i < end; ++i) {
        std::vector<float>& own = of_heads[static_cast<size_t>(i)];
        own.resize(tokens.size());
        const auto layer = first_layer + static_cast<int32_t>(i / prompt->shape.heads);
        for_each_attention_row(*prompt, layer, static_cast<int32_t>(i % prompt->shape.heads), begin,
                               prompt->size(), [&](int32_t query, std::span<const float> row) {
                                 const float weight = static_cast<float>(query - begin) /
                                                      static_cast<float>(std::max(1, window - 1));
                                 for (size_t j = 0; j < row.size(); ++j) {
                                   own[j] = std::max(own[j], weight * row[j]);
                                 }
                               });
      }
    });
    std::vector<float> scores(tokens.size());
    for (const std::vector<float>& own : of_heads) {
      std::ranges::transform(scores, own, scores.begin(),
                             [](float a, float b) { return std::max(a, b); });
    }
    // An even width reaches one token further to the right, as in the authors' code.
    std::ranges::reverse(scores);
    scores = max_pool(scores, kernel_);
    std::ranges::reverse(scores);
    return scores;
  }

  // Returns: the tokens that stay, ascending: the last ones, then the best with their neighbours,
  // the nearest ones first, until the budget is full.
  std::vector<int32_t> kept_tokens(Model& draft, std::span<const int32_t> tokens) const {
    const auto size = static_cast<int32_t>(tokens.size());
    const int32_t count = std::max(std::min(window_, size), static_cast<int32_t>(budget_ * size));
    const std::vector<float> scores = scores_of(draft, tokens);
    std::vector<int32_t> best = largest(scores, count);
    std::ranges::stable_sort(best, std::ranges::greater(),
                             [&](int32_t i) { return scores[static_cast<size_t>(i)]; });
    std::vector<int32_t> offsets(static_cast<size_t>(std::max(1, neighbours_)));
    std::iota(offsets.begin(), offsets.end(), -((neighbours_ - 1) / 2));
    std::ranges::stable_sort(offsets, {}, [](int32_t offset) { return std::abs(offset); });
    std::vector<bool> kept(tokens.size());
    int32_t room = count;
    const auto keep = [&](int32_t token) {
      if (room == 0 || kept[static_cast<size_t>(token)]) return;
      kept[static_cast<size_t>(token)] = true;
      --room;
    };
    for (int32_t token = size - std::min(window_, size); token < size; ++token) keep(token);
    for (const int32_t token : best) {
      for (const int32_t offset : offsets) keep(std::clamp(token + offset, 0, size - 1));
    }
    std::vector<int32_t> ascending;
    for (int32_t token = 0; token < size; ++token) {
      if (kept[static_cast<size_t>(token)]) ascending.push_back(token);
    }
    return ascending;
  }

  double budget_ = 0;
  int32_t window_ = 0;
  int32_t kernel_ = 0;
  int32_t neighbours_ = 0;
  int32_t first_layer_ = 0;
};

}  // namespace tessera::lab
