#include "eval/lab/ranking.h"

#include <algorithm>
#include <numeric>

namespace tessera::lab {
namespace {

// Calls fold(pooled, neighbour) for the neighbours of each score, itself included.
template <class Fold>
std::vector<float> pool(std::span<const float> scores, int32_t width, float begin, Fold&& fold) {
  const auto size = static_cast<int32_t>(scores.size());
  std::vector<float> pooled(scores.size(), begin);
  for (int32_t i = 0; i < size; ++i) {
    const int32_t first = std::max(0, i - width / 2);
    const int32_t last = std::min(size - 1, i - width / 2 + width - 1);
    for (int32_t j = first; j <= last; ++j) {
      fold(pooled[static_cast<size_t>(i)], scores[static_cast<size_t>(j)]);
    }
  }
  return pooled;
}

}  // namespace

std::vector<int32_t> largest(std::span<const float> scores, int32_t count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kept = std::min(order.size(), static_cast<size_t>(std::max(count, 0)));
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(kept);
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<float> mean_pool(std::span<const float> scores, int32_t width) {
  std::vector<float> pooled = pool(scores, width, 0, [](float& sum, float score) { sum += score; });
  for (float& score : pooled) score /= static_cast<float>(width);
  return pooled;
}

std::vector<float> max_pool(std::span<const float> scores, int32_t width) {
  return pool(scores, width, scores.empty() ? 0 : *std::ranges::min_element(scores),
              [](float& most, float score) { most = std::max(most, score); });
}

}  // namespace tessera::lab
