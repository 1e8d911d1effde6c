#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Computes the parts of a prompt each by itself, at the positions that they have in the prompt, so
// that any prompt with such a part may reuse its keys and values (Prompt Cache, section 3). The
// prompt's end is new text, which attends to all parts.
class PromptCache final : public Cloned<PromptCache> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<PromptCache>();
    method->modules_ = std::max(1, settings.integer("modules", 4));
    method->new_text_ = std::max(1, settings.integer("new_text", 32));
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    Modules modules(model, tokens);
    const auto size = static_cast<int32_t>(tokens.size());
    const int32_t before = std::max(0, size - new_text_);
    const auto module = static_cast<int32_t>(div_ceil(std::max(before, 1), modules_));
    for (int32_t first = 0; first < before; first += module) {
      modules.compute(first, std::min(module, before - first), first);
    }
    std::vector<float> logits = modules.compute(before, size - before, 0);
    add_all_tokens(modules.prompt(), cache);
    return logits;
  }

 private:
  class Modules final : public LayerHandler {
   public:
    Modules(Model& model, std::span<const int32_t> tokens) : model_(model) {
      const Shape& shape = prompt_.shape = model.shape();
      prompt_.tokens.assign(tokens.begin(), tokens.end());
      prompt_.layers.resize(static_cast<size_t>(shape.layers));
      for (LayerPrompt& layer : prompt_.layers) {
        layer.keys = layer.values = Rows(int64_t{shape.kv_heads} * shape.head_dim);
      }
    }

    // Computes tokens that attend to those from `sees` on.
    std::vector<float> compute(int32_t first, int32_t count, int32_t sees) {
      sees_ = sees;
      return model_.compute(
          std::span(prompt_.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
          first, *this);
    }

    void attend(const LayerStep& step) override {
      LayerPrompt& layer = prompt_.layers[static_cast<size_t>(step.layer)];
      layer.keys.add(step.keys);
      layer.values.add(step.values);
      const auto seen = [&](const Rows& rows) {
        return rows.view().rows_from(sees_, rows.rows() - sees_);
      };
      lab::attend({.shape = prompt_.shape,
                   .queries = step.queries,
                   .first = step.first - sees_,
                   .keys = seen(layer.keys),
                   .values = seen(layer.values),
                   .scale = step.scale,
                   .window = step.window,
                   .out = step.out},
                  model_.pool());
    }

    const Prompt& prompt() const { return prompt_; }

   private:
    Model& model_;
    Prompt prompt_;
    int32_t sees_ = 0;
  };

  int32_t modules_ = 0;
  int32_t new_text_ = 0;  // tokens
};

}  // namespace tessera::lab
