#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"
#include "models/architectures/rope_config.h"
#include "text/tokenizer.h"

namespace tessera::lab {

// Keeps the tokens that the model attends to most while it repeats the prompt (KVzip, section 3.2
// and algorithm 1). A score is the largest attention of a repeated chunk's queries. One budget
// holds for all layers and heads.
class KvZip final : public Cloned<KvZip> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<KvZip>();
    method->budget_ = settings.number("budget", 0.3);
    method->chunk_ = settings.integer("chunk", 2048);
    method->sinks_ = settings.integer("sinks", 4);
    return method;
  }

  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    const std::shared_ptr<const Prompt> prompt = model.prompt(tokens);
    const Shape& shape = prompt->shape;
    const int32_t size = prompt->size();
    // The model's context must hold the prompt, the request and a repeated chunk.
    constexpr int32_t kRequest = 256;
    const int32_t chunk = std::min(chunk_, longest_context(model.config()) - size - kRequest);
    if (chunk <= 0) {
      add_all_tokens(*prompt, cache);
      return prompt->logits;
    }
    std::vector<float> scores(cache.heads.size() * tokens.size());
    for (int32_t first = 0; first < size; first += chunk) {
      const int32_t end = std::min(size, first + chunk);
      std::vector<int32_t> repeated(tokens.begin(), tokens.end());
      append_request(model, tokens, first, repeated);
      repeated.insert(repeated.end(), tokens.begin() + first, tokens.begin() + end);
      add_scores(model, repeated, {first, end, size}, scores);
    }
    for (size_t i = 0; i < scores.size(); ++i) {
      if (i % tokens.size() < static_cast<size_t>(sinks_)) {
        scores[i] = std::numeric_limits<float>::infinity();
      }
    }
    const auto dropped = static_cast<int32_t>((1 - budget_) * static_cast<double>(scores.size()));
    std::vector<std::vector<int32_t>> kept(cache.heads.size());
    for (const int32_t i : largest(scores, static_cast<int32_t>(scores.size()) - dropped)) {
      kept[static_cast<size_t>(i / size)].push_back(i % size);
    }
    for (int32_t head = 0; head < static_cast<int32_t>(kept.size()); ++head) {
      add_tokens(*prompt, head / shape.kv_heads, head % shape.kv_heads,
                 kept[static_cast<size_t>(head)], cache);
    }
    return prompt->logits;
  }

 private:
  struct Chunk {
    int32_t first = 0;
    int32_t end = 0;
    int32_t prompt = 0;  // the prompt's tokens
  };

  // Appends the request to repeat the chunk from `first` on. A later chunk is named by the tokens
  // before it.
  static void append_request(const Model& model, std::span<const int32_t> tokens, int32_t first,
                             std::vector<int32_t>& to) {
    constexpr int32_t kNamed = 8;
    const auto append = [&](const std::string& text) {
      if (model.tokenizer == nullptr) return;
      const TextSegment segment{.text = text};
      const std::vector<int32_t> ids = model.tokenizer->encode({&segment, 1}, false);
      to.insert(to.end(), ids.begin(), ids.end());
    };
    append(first == 0 ? "\n\nRepeat the previous context exactly."
                      : "\n\nRepeat the part of the previous context exactly, starting with");
    to.insert(to.end(), tokens.begin() + std::max(0, first - kNamed), tokens.begin() + first);
    append("\n");
  }

  // Raises scores [layers * kv_heads, tokens] to the attention of the repeated tokens. Attention
  // is over the first tokens, the chunk and the repeated tokens alone.
  void add_scores(Model& model, const std::vector<int32_t>& repeated, const Chunk& chunk,
                  std::vector<float>& scores) const {
    const std::shared_ptr<const Prompt> prompt = model.prompt(repeated);
    const Shape& shape = prompt->shape;
    const int32_t sinks = std::min(sinks_, chunk.first);
    for_each_head(*prompt, [&](int32_t layer, int32_t kv_head) {
      const auto head = static_cast<size_t>(layer * shape.kv_heads + kv_head);
      const auto size = static_cast<size_t>(chunk.prompt);
      const std::span<float> of_head = std::span(scores).subspan(head * size, size);
      const int32_t first = kv_head * shape.group();
      for (int32_t query = first; query < first + shape.group(); ++query) {
        for_each_attention_row(
            *prompt, layer, query, chunk.prompt, prompt->size(),
            [&](int32_t, std::span<const float> row) { raise(row, chunk, sinks, of_head); });
      }
    });
  }

  static void raise(std::span<const float> row, const Chunk& chunk, int32_t sinks,
                    std::span<float> scores) {
    double all = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      const auto token = static_cast<int32_t>(i);
      const bool seen =
          token < sinks || token >= chunk.prompt || (token >= chunk.first && token < chunk.end);
      all += seen ? double{row[i]} : 0;
    }
    for (auto i = static_cast<size_t>(chunk.first); i < static_cast<size_t>(chunk.end); ++i) {
      scores[i] = std::max(scores[i], static_cast<float>(double{row[i]} / all));
    }
  }

  double budget_ = 0;
  int32_t chunk_ = 0;
  int32_t sinks_ = 0;
};

}  // namespace tessera::lab
