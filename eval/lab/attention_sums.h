#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/prompt.h"

namespace tessera::lab {

// Returns: for each token, the sum of attention from all the prompt's queries, over the query heads
// of a KV head.
inline std::vector<float> attention_sums(const Prompt& prompt, int32_t layer, int32_t kv_head) {
  std::vector<float> sums(prompt.tokens.size());
  const int32_t group = prompt.shape.group();
  for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for_each_attention_row(prompt, layer, head, 0, prompt.size(),
                           [&](int32_t, std::span<const float> row) {
                             add_scaled(std::span(sums).first(row.size()), 1, row);
                           });
  }
  return sums;
}

// Returns: the cosine of the angle between two rows.
inline float cosine(std::span<const float> a, std::span<const float> b) {
  return dot(a, b) / std::sqrt(std::max(dot(a, a) * dot(b, b), 1e-30f));
}

}  // namespace tessera::lab
