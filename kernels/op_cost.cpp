#include "kernels/op_cost.h"

#include <algorithm>
#include <cstdlib>

namespace tessera {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kId = sizeof(int32_t);  // a token, a position, a page

template <class T>
int64_t matrix_bytes(const MatrixView<T>& matrix) {
  return matrix.rows * matrix.cols * int64_t{sizeof(T)};
}

template <class T>
int64_t elements(const MatrixView<T>& matrix) {
  return matrix.rows * matrix.cols;
}

}  // namespace

int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  switch (format) {
    case WeightFormat::f32:
      return rows * cols * kFloat;
    case WeightFormat::bf16:
      return rows * cols * 2;
    case WeightFormat::int8:
      return rows * (cols + kFloat);
    case WeightFormat::int4:
      return rows * div_ceil(cols, kInt4Group) * (kInt4Group / 2 + int64_t{sizeof(bf16)});
  }
  return 0;
}

int64_t kv_token_bytes(const KvPageLayout& layout) {
  return layout.head_dim * (layout.key_bytes() + layout.value_bytes());
}

OpCost op_cost(const EmbedArgs& args) {
  const int64_t element = args.table_f32.data != nullptr ? kFloat : int64_t{sizeof(bf16)};
  return {.read_bytes = std::ssize(args.tokens) * kId + elements(args.out) * element,
          .written_bytes = matrix_bytes(args.out),
          .flops = 0};
}

// Squares and their sum, then two factors for each element.
OpCost op_cost(const RmsNormArgs& args) {
  return {.read_bytes = matrix_bytes(args.in) + std::ssize(args.weight) * kFloat,
          .written_bytes = matrix_bytes(args.out),
          .flops = 4 * elements(args.in)};
}

OpCost op_cost(const LinearArgs& args) {
  const PackedWeight& weight = *args.weight;
  return {
      .read_bytes = matrix_bytes(args.in) + weight_bytes(weight.format, weight.rows, weight.cols) +
                    std::ssize(args.bias) * kFloat + (args.accumulate ? matrix_bytes(args.out) : 0),
      .written_bytes = matrix_bytes(args.out),
      .flops = 2 * args.in.rows * weight.rows * weight.cols};
}

// Four products and two sums for each pair.
OpCost op_cost(const RopeArgs& args) {
  const int64_t angles = args.heads.rows * (args.head_dim / 2);
  return {.read_bytes =
              matrix_bytes(args.heads) + 2 * angles * kFloat + std::ssize(args.positions) * kId,
          .written_bytes = matrix_bytes(args.heads),
          .flops = 3 * elements(args.heads)};
}

// An exponential, a sum, a quotient and a product for each element.
OpCost op_cost(const SiluMulArgs& args) {
  return {.read_bytes = matrix_bytes(args.gate_up),
          .written_bytes = matrix_bytes(args.out),
          .flops = 4 * elements(args.out)};
}

// A page id is read in one place, written to the other, and the place it left is marked. Who gets a
// page becomes its owner; who gives one back is taken from its owners.
OpCost op_cost(const KvResizeArgs& args) {
  int64_t given = 0;
  int64_t returned = 0;
  for (const KvRowResize& change : args.changes) {
    const int64_t growth = int64_t{change.pages_after} - change.pages_before;
    (growth > 0 ? given : returned) += std::abs(growth);
  }
  const int64_t rows = int64_t{args.pool.layers} * args.pool.kv_heads;
  return {.read_bytes = rows * (given + 2 * returned) * kId,
          .written_bytes = rows * 3 * (given + returned) * kId,
          .flops = 0};
}

// A whole page's id is copied and its owners are counted up; a page for the rest is taken from the
// free list as kv_resize takes it, and the rest's tokens are copied.
OpCost op_cost(const KvForkArgs& args) {
  const KvPageLayout& layout = args.pages.layout;
  OpCost cost;
  for (const KvRowFork& fork : args.forks) {
    const int64_t whole = fork.tokens / layout.capacity;
    const int64_t rest = fork.tokens % layout.capacity;
    const int64_t taken = rest > 0 ? 1 : 0;
    cost.read_bytes += (2 * whole + taken) * kId + rest * kv_token_bytes(layout);
    cost.written_bytes += (2 * whole + 3 * taken) * kId + rest * kv_token_bytes(layout);
  }
  const int64_t rows = int64_t{args.pool.layers} * args.pool.kv_heads;
  cost.read_bytes *= rows;
  cost.written_bytes *= rows;
  return cost;
}

OpCost op_cost(const KvStoreArgs& args) {
  int64_t tokens = 0;
  for (const SequenceSpan& span : args.sequences) {
    tokens += span.count;
  }
  return {
      .read_bytes = tokens * (args.keys.cols + args.values.cols) * kFloat,
      .written_bytes = tokens * args.pages.kv_heads * kv_token_bytes(args.pages.layout),
      .flops = 0,
  };
}

// A product with a key and one with a value for each query, head and token seen.
OpCost op_cost(const AttentionArgs& args) {
  int64_t tokens = 0;
  int64_t rows = 0;
  int64_t scores = 0;
  for (const SequenceSpan& span : args.sequences) {
    const int64_t first =
        args.window > 0 ? std::max<int64_t>(0, span.context + 1 - args.window) : 0;
    tokens += span.context + span.count - first;
    rows += span.count;
    for (int64_t i = 0; i < span.count; ++i) {
      const int64_t seen = span.context + i + 1;
      scores += args.window > 0 ? std::min<int64_t>(seen, args.window) : seen;
    }
  }
  const int64_t width = int64_t{args.query_heads} * args.pages.layout.head_dim;
  return {.read_bytes = rows * width * kFloat +
                        tokens * args.pages.kv_heads * kv_token_bytes(args.pages.layout),
          .written_bytes = rows * width * kFloat,
          .flops = 4 * scores * width};
}

}  // namespace tessera
