#pragma once

#include <cstdint>
#include <vector>

#include "eval/lab/rows.h"

namespace tessera {
class ThreadPool;
}  // namespace tessera

namespace tessera::lab {

// Shapes that a method needs of its model.
struct Shape {
  int32_t layers = 0;
  int32_t heads = 0;     // query heads
  int32_t kv_heads = 0;  // divides heads
  int32_t head_dim = 0;

  int32_t group() const { return heads / kv_heads; }  // query heads of a KV head
  bool operator==(const Shape&) const = default;
};

// Everything that one layer computed of a prompt, with full attention. Heads lie side by side.
struct LayerPrompt {
  Rows input;          // [tokens, hidden]: q, k and v are products of it
  Rows queries;        // [tokens, heads * head_dim], after RoPE
  Rows keys_before;    // [tokens, kv_heads * head_dim], before RoPE
  Rows keys;           // [tokens, kv_heads * head_dim], after RoPE
  Rows values;         // [tokens, kv_heads * head_dim]
  float scale = 0;     // of q . k
  int32_t window = 0;  // sliding window in tokens; 0: none

  // Views of one head, [tokens, head_dim].
  MatrixView<const float> queries_of(const Shape& shape, int32_t head) const {
    return queries.columns(int64_t{head} * shape.head_dim, shape.head_dim);
  }
  MatrixView<const float> keys_of(const Shape& shape, int32_t kv_head) const {
    return keys.columns(int64_t{kv_head} * shape.head_dim, shape.head_dim);
  }
  MatrixView<const float> values_of(const Shape& shape, int32_t kv_head) const {
    return values.columns(int64_t{kv_head} * shape.head_dim, shape.head_dim);
  }
};

struct Prompt {
  Shape shape;
  std::vector<int32_t> tokens;
  std::vector<LayerPrompt> layers;
  std::vector<float> logits;   // [vocab], after the last token
  ThreadPool* pool = nullptr;  // of the model, for methods; null: the calling thread alone

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
};

}  // namespace tessera::lab
