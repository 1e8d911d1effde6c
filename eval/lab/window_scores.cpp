#include "eval/lab/window_scores.h"

#include <numeric>
#include <utility>

#include "eval/lab/attention.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

std::vector<float> window_sums(const Prompt& prompt, int32_t layer, int32_t head,
                               const ObservationWindow& window) {
  std::vector<float> sums(static_cast<size_t>(window.before(prompt)));
  for_each_attention_row(
      prompt, layer, head, window.before(prompt), prompt.size(),
      [&](int32_t, std::span<const float> row) { add_scaled(sums, 1, row.first(sums.size())); });
  return sums;
}

std::vector<float> window_scores(const Prompt& prompt, int32_t layer, int32_t kv_head,
                                 const ObservationWindow& window) {
  std::vector<float> all(static_cast<size_t>(window.before(prompt)));
  const int32_t group = prompt.shape.group();
  for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    add_scaled(all, 1, mean_pool(window_sums(prompt, layer, head, window), window.kernel));
  }
  return all;
}

std::vector<std::vector<float>> all_window_scores(const Prompt& prompt,
                                                  const ObservationWindow& window) {
  const Shape& shape = prompt.shape;
  std::vector<std::vector<float>> all(static_cast<size_t>(shape.layers * shape.kv_heads));
  for_each_head(prompt, [&](int32_t layer, int32_t kv_head) {
    all[static_cast<size_t>(layer * shape.kv_heads + kv_head)] =
        window_scores(prompt, layer, kv_head, window);
  });
  return all;
}

void add_tokens_and_window(const Prompt& prompt, int32_t layer, int32_t kv_head,
                           std::vector<int32_t> positions, const ObservationWindow& window,
                           Cache& cache) {
  positions.resize(positions.size() + static_cast<size_t>(window.size(prompt)));
  std::iota(positions.end() - window.size(prompt), positions.end(), window.before(prompt));
  add_tokens(prompt, layer, kv_head, positions, cache);
}

}  // namespace tessera::lab
