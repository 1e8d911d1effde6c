#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/methods/full.h"
#include "eval/lab/ranking.h"
#include "eval/lab/sequence.h"
#include "models/architectures/rope_config.h"

namespace tessera::lab {

// Keeps the tokens that a small model's answer attends to in the large model, and those that the
// prompt's last tokens attend to (SpecKV of Draft-based Approximate Inference, algorithm 1). A
// score is the largest attention over queries and the head group, after max pooling.
class SpecKv final : public Cloned<SpecKv> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<SpecKv>();
    method->budget_ = settings.number("budget", 0.2);
    method->window_ = settings.integer("window", 32);
    method->kernel_ = settings.integer("kernel", 7);
    method->lookahead_ = settings.integer("lookahead", 32);
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    std::vector<float> logits = model.prompt(tokens)->logits;
    std::vector<int32_t> answered(tokens.begin(), tokens.end());
    Sequence draft(*model.draft, Full(), tokens);
    const int32_t room = longest_context(model.config()) - static_cast<int32_t>(tokens.size());
    for (int32_t i = 0; i < std::min(lookahead_, room); ++i) {
      if (i > 0) draft.add(answered.back());
      const auto best = std::ranges::max_element(draft.logits());
      answered.push_back(static_cast<int32_t>(best - draft.logits().begin()));
    }
    const std::shared_ptr<const Prompt> prompt = model.prompt(answered);
    for_each_head(*prompt, [&](int32_t layer, int32_t kv_head) {
      keep(*prompt, layer, kv_head, static_cast<int32_t>(tokens.size()), cache);
    });
    return logits;
  }

 private:
  void keep(const Prompt& prompt, int32_t layer, int32_t kv_head, int32_t size,
            Cache& cache) const {
    const int32_t before = std::max(0, size - window_);
    std::vector<float> scores(static_cast<size_t>(before));
    const int32_t group = prompt.shape.group();
    for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for_each_attention_row(prompt, layer, head, before, prompt.size(),
                             [&](int32_t, std::span<const float> row) {
                               for (size_t i = 0; i < scores.size(); ++i) {
                                 scores[i] = std::max(scores[i], row[i]);
                               }
                             });
    }
    std::vector<int32_t> kept =
        largest(max_pool(scores, kernel_), static_cast<int32_t>(budget_ * size) - (size - before));
    kept.resize(kept.size() + static_cast<size_t>(size - before));
    std::iota(kept.end() - (size - before), kept.end(), before);
    add_tokens(prompt, layer, kv_head, kept, cache);
  }

  double budget_ = 0;
  int32_t window_ = 0;
  int32_t kernel_ = 0;
  int32_t lookahead_ = 0;  // tokens of the small model's answer
};

}  // namespace tessera::lab
