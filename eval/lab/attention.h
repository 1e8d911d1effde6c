#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "eval/lab/cache.h"
#include "eval/lab/prompt.h"
#include "kernels/matrix/view.h"

namespace tessera {
class ThreadPool;
}  // namespace tessera

namespace tessera::lab {

float dot(std::span<const float> a, std::span<const float> b);
// to += factor * what
void add_scaled(std::span<float> to, float factor, std::span<const float> what);
// Replaces logits by their softmax.
void softmax(std::span<float> logits);

// Causal attention of queries at positions [first, first + queries.rows) over the keys and values
// at positions from 0 on. All matrices have their heads side by side.
struct CausalAttention {
  Shape shape;
  MatrixView<const float> queries;  // [count, heads * head_dim]
  int32_t first = 0;
  MatrixView<const float> keys;    // [at least first + count, kv_heads * head_dim]
  MatrixView<const float> values;  // likewise
  float scale = 0;
  int32_t window = 0;     // sliding window in tokens; 0: none
  MatrixView<float> out;  // [count, heads * head_dim]
};
void attend(const CausalAttention& args, ThreadPool& pool);

// Returns: attention's probabilities of one query over the prompt's tokens [0, position],
// [position + 1]. A token outside the window has 0.
std::vector<float> attention_row(const Prompt& prompt, int32_t layer, int32_t head,
                                 int32_t position);

// Calls `see` with the probabilities of each query in [begin, end), in order of position.
void for_each_attention_row(const Prompt& prompt, int32_t layer, int32_t head, int32_t begin,
                            int32_t end,
                            const std::function<void(int32_t, std::span<const float>)>& see);

// Likewise for the query heads of a KV head at once: [group, position + 1].
void for_each_group_row(const Prompt& prompt, int32_t layer, int32_t kv_head, int32_t begin,
                        int32_t end,
                        const std::function<void(int32_t, MatrixView<const float>)>& see);

// Calls body(layer, kv_head) for every head of a prompt, on the threads of its pool.
// Requires: calls for different heads do not write to the same place.
void for_each_head(const Prompt& prompt, const std::function<void(int32_t, int32_t)>& body);

// Attention of one query head group over a cache's entries.
// entries: ascending indices; no value: all
// out: [group, head_dim]
// Returns: probabilities, [group, entries read]
Rows attend_cache(MatrixView<const float> queries, float scale, const HeadCache& head,
                  const std::optional<std::vector<int32_t>>& entries, MatrixView<float> out);

}  // namespace tessera::lab
