#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "eval/lab/cache.h"
#include "eval/lab/prompt.h"

namespace tessera::lab {

// The queries at a prompt's end that choose tokens, as in SnapKV.
struct ObservationWindow {
  int32_t queries = 32;
  int32_t kernel = 5;  // width of the mean over neighbours

  int32_t size(const Prompt& prompt) const { return std::min(queries, prompt.size()); }
  int32_t before(const Prompt& prompt) const { return prompt.size() - size(prompt); }
};

// Returns: for each token before the window, the sum of one query head's attention over the
// window's queries.
std::vector<float> window_sums(const Prompt& prompt, int32_t layer, int32_t head,
                               const ObservationWindow& window);

// Returns: the sum over the query heads of a KV head, each after pooling.
std::vector<float> window_scores(const Prompt& prompt, int32_t layer, int32_t kv_head,
                                 const ObservationWindow& window);

// Returns: those scores of all heads, [layers * kv_heads].
std::vector<std::vector<float>> all_window_scores(const Prompt& prompt,
                                                  const ObservationWindow& window);

// Adds the tokens of one head at ascending `positions` before the window, and the window's.
void add_tokens_and_window(const Prompt& prompt, int32_t layer, int32_t kv_head,
                           std::vector<int32_t> positions, const ObservationWindow& window,
                           Cache& cache);

}  // namespace tessera::lab
