#include "eval/lab/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "eval/lab/widest.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera::lab {
namespace {

// Sixteen sums, so that the compiler may keep them in vectors without reordering any other sum.
TESSERA_LAB_CLONES float dot_of(const float* a, const float* b, size_t count) {
  constexpr size_t kSums = 16;
  float sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (size_t j = 0; j < kSums; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (size_t j = 0; i < count; ++i, ++j) sums[j] += a[i] * b[i];
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

TESSERA_LAB_CLONES void add_scaled_to(float* to, float factor, const float* what, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] += factor * what[i];
}

// Logits of one query over tokens [begin, end), in logits[0 ...].
void logits_of(std::span<const float> query, MatrixView<const float> keys, int32_t begin,
               int32_t end, float scale, std::span<float> logits) {
  for (int32_t token = begin; token < end; ++token) {
    logits[static_cast<size_t>(token - begin)] = scale * dot(query, keys.row(token));
  }
}

int32_t first_seen(int32_t position, int32_t window) {
  return window > 0 ? std::max(0, position + 1 - window) : 0;
}

// Attention of the query at `position`, [position + 1].
void attention_of(const LayerPrompt& from, std::span<const float> query,
                  MatrixView<const float> keys, int32_t position, std::span<float> row) {
  const int32_t first = first_seen(position, from.window);
  std::ranges::fill(row.first(static_cast<size_t>(first)), 0.0f);
  const auto seen = row.subspan(static_cast<size_t>(first));
  logits_of(query, keys, first, position + 1, from.scale, seen);
  softmax(seen);
}

}  // namespace

float dot(std::span<const float> a, std::span<const float> b) {
  return dot_of(a.data(), b.data(), a.size());
}

void add_scaled(std::span<float> to, float factor, std::span<const float> what) {
  add_scaled_to(to.data(), factor, what.data(), to.size());
}

void softmax(std::span<float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float& logit : logits) {
    logit = std::exp(logit - largest);
    sum += double{logit};
  }
  for (float& logit : logits) {
    logit = static_cast<float>(double{logit} / sum);
  }
}

void attend(const CausalAttention& args, ThreadPool& pool) {
  const Shape& shape = args.shape;
  constexpr int64_t kQueries = 16;  // of one piece of work
  const int64_t blocks = div_ceil(args.queries.rows, kQueries);
  pool.parallel_for(shape.heads * blocks, 1, [&](int64_t begin, int64_t end, int /*worker*/) {
    std::vector<float> weights(static_cast<size_t>(args.first + args.queries.rows));
    for (int64_t work = begin; work < end; ++work) {
      const int64_t head = work / blocks;
      const int64_t column = head * shape.head_dim;
      const int64_t kv_column = head / shape.group() * shape.head_dim;
      const MatrixView<const float> keys = args.keys.columns(kv_column, shape.head_dim);
      const MatrixView<const float> values = args.values.columns(kv_column, shape.head_dim);
      const MatrixView<const float> queries = args.queries.columns(column, shape.head_dim);
      const MatrixView<float> out = args.out.columns(column, shape.head_dim);
      const int64_t last = std::min(args.queries.rows, (work % blocks + 1) * kQueries);
      for (int64_t row = work % blocks * kQueries; row < last; ++row) {
        const int32_t position = args.first + static_cast<int32_t>(row);
        const int32_t first = first_seen(position, args.window);
        const auto seen = std::span(weights).first(static_cast<size_t>(position + 1 - first));
        logits_of(queries.row(row), keys, first, position + 1, args.scale, seen);
        softmax(seen);
        std::ranges::fill(out.row(row), 0.0f);
        for (int32_t token = first; token <= position; ++token) {
          add_scaled(out.row(row), seen[static_cast<size_t>(token - first)], values.row(token));
        }
      }
    }
  });
}

void for_each_attention_row(const Prompt& prompt, int32_t layer, int32_t head, int32_t begin,
                            int32_t end,
                            const std::function<void(int32_t, std::span<const float>)>& see) {
  const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
  const MatrixView<const float> queries = from.queries_of(prompt.shape, head);
  const MatrixView<const float> keys = from.keys_of(prompt.shape, head / prompt.shape.group());
  std::vector<float> row(static_cast<size_t>(std::max(end, 0)));
  for (int32_t position = begin; position < end; ++position) {
    const auto all = std::span(row).first(static_cast<size_t>(position) + 1);
    attention_of(from, queries.row(position), keys, position, all);
    see(position, all);
  }
}

void for_each_group_row(const Prompt& prompt, int32_t layer, int32_t kv_head, int32_t begin,
                        int32_t end,
                        const std::function<void(int32_t, MatrixView<const float>)>& see) {
  const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
  const MatrixView<const float> keys = from.keys_of(prompt.shape, kv_head);
  const int32_t group = prompt.shape.group();
  Rows rows(group, std::max(end, 0));
  for (int32_t position = begin; position < end; ++position) {
    const int32_t seen = position + 1;
    for (int32_t i = 0; i < group; ++i) {
      const MatrixView<const float> queries = from.queries_of(prompt.shape, kv_head * group + i);
      attention_of(from, queries.row(position), keys, position,
                   rows.row(i).first(static_cast<size_t>(seen)));
    }
    see(position, std::as_const(rows).columns(0, seen));
  }
}

void for_each_head(const Prompt& prompt, const std::function<void(int32_t, int32_t)>& body) {
  const int64_t heads = int64_t{prompt.shape.layers} * prompt.shape.kv_heads;
  const auto run = [&](int64_t begin, int64_t end, int /*worker*/) {
    for (int64_t head = begin; head < end; ++head) {
      body(static_cast<int32_t>(head / prompt.shape.kv_heads),
           static_cast<int32_t>(head % prompt.shape.kv_heads));
    }
  };
  if (prompt.pool == nullptr) {
    run(0, heads, 0);
  } else {
    prompt.pool->parallel_for(heads, 1, run);
  }
}

std::vector<float> attention_row(const Prompt& prompt, int32_t layer, int32_t head,
                                 int32_t position) {
  std::vector<float> row;
  for_each_attention_row(
      prompt, layer, head, position, position + 1,
      [&](int32_t, std::span<const float> seen) { row.assign(seen.begin(), seen.end()); });
  return row;
}

Rows attend_cache(MatrixView<const float> queries, float scale, const HeadCache& head,
                  const std::optional<std::vector<int32_t>>& entries, MatrixView<float> out) {
  std::vector<int32_t> all;
  if (!entries) {
    all.resize(head.positions.size());
    std::iota(all.begin(), all.end(), 0);
  }
  const std::vector<int32_t>& read = entries ? *entries : all;
  Rows weights(queries.rows, std::ssize(read));
  for (int64_t q = 0; q < queries.rows; ++q) {
    const std::span<float> row = weights.row(q);
    for (size_t i = 0; i < read.size(); ++i) {
      row[i] = scale * dot(queries.row(q), head.keys.row(read[i])) +
               head.bias[static_cast<size_t>(read[i])];
    }
    softmax(row);
    std::ranges::fill(out.row(q), 0.0f);
    for (size_t i = 0; i < read.size(); ++i) {
      add_scaled(out.row(q), row[i], head.values.row(read[i]));
    }
  }
  return weights;
}

}  // namespace tessera::lab
