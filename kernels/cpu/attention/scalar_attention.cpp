#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kernels/cpu/attention/attention_ops.h"
#include "kernels/cpu/attention/row_tokens.h"
#include "kernels/cpu/attention/tile_selection.h"
#include "kernels/cpu/pages/sparse_codec.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cpu/tiles/sketch_sums.h"
#include "kernels/kv/code_step.h"
#include "kernels/kv/rotation.h"
#include "kernels/matrix/e4m3.h"

namespace tessera::scalar {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// Address of one token: its page, its tile of 16 tokens, and its lane in the tile.
struct Token {
  const KvPageLayout* layout;
  const std::byte* page;
  const std::byte* keys;    // of the tile
  const std::byte* values;  // of the tile
  int32_t tile;
  int32_t lane;

  bool is_codes() const { return layout->format.is_codes(); }
  bool is_sparse() const { return layout->format.is_sparse(); }
  bool is_rotated() const { return layout->format.rotated; }
  const f16* halves_at(int64_t offset) const { return reinterpret_cast<const f16*>(page + offset); }
  void sparse_key(float* channels) const {
    decode_sparse(sparse_keys(*layout), keys, halves_at(layout->key_scales_offset(tile)), lane,
                  channels);
  }
  void sparse_value(float* channels) const {
    decode_sparse(sparse_values(*layout), values, halves_at(layout->value_scales_offset(tile)),
                  lane, channels);
  }
  float half_at(int64_t offset) const { return to_f32(halves_at(offset)[lane]); }
  float key_scale() const { return half_at(layout->key_scales_offset(tile)); }
  float key_zero() const {
    return has_codebook(layout->format.key_bits) ? -key_scale() * kCodebookZero
                                                 : half_at(layout->key_zeros_offset(tile));
  }
  float value_scale() const { return half_at(layout->value_scales_offset(tile)); }
  float value_zero() const {
    return has_codebook(layout->format.value_bits) ? -value_scale() * kCodebookZero
                                                   : half_at(layout->value_zeros_offset(tile));
  }

  static float element(const std::byte* at, int32_t bits) {
    return bits == 8    ? to_f32(*reinterpret_cast<const e4m3*>(at))
           : bits == 16 ? to_f32(*reinterpret_cast<const f16*>(at))
                        : *reinterpret_cast<const float*>(at);
  }
  float key(int32_t channel) const {
    return element(keys + layout->key_offset(lane, channel), layout->format.key_bits);
  }
  float value(int32_t channel) const {
    return element(values + layout->value_offset(lane, channel), layout->format.value_bits);
  }

  int32_t key_code(int32_t channel) const {
    return multiplier_of(layout->key_place(lane, channel).load(keys), layout->format.key_bits);
  }
  int32_t value_code(int32_t channel) const {
    return multiplier_of(layout->value_place(lane, channel).load(values),
                         layout->format.value_bits);
  }
};

Token token_at(const KvPageLayout& layout, const std::byte* page, int32_t index) {
  const int32_t tile = index / KvPageLayout::kKeyTile;
  return {&layout,
          page,
          page + layout.keys_offset(tile),
          page + layout.values_offset(tile),
          tile,
          index % KvPageLayout::kKeyTile};
}

// One query of one head, as floats and as integers.
struct Query {
  float floats[kMaxHeadDim];  // scaled so that the softmax is one of powers of 2
  int32_t codes[kMaxHeadDim];
  float step;
  float sum;
};

Query make_query(std::span<const float> in, float scale) {
  Query query{};
  float largest = 0;
  for (size_t channel = 0; channel < in.size(); ++channel) {
    query.floats[channel] = in[channel] * (scale * kLog2E);
    query.sum += query.floats[channel];
    largest = std::max(largest, std::abs(query.floats[channel]));
  }
  const float bounded = std::max(largest, kMinLargest);
  const float inverse = kCodeRange / bounded;
  query.step = bounded / kCodeRange;
  for (size_t channel = 0; channel < in.size(); ++channel) {
    query.codes[channel] = static_cast<int32_t>(std::nearbyint(query.floats[channel] * inverse));
  }
  return query;
}

// A query as it is, and rotated for tokens of rotated formats, if a tier has one.
struct Queries {
  Query plain;
  Query rotated;

  const Query& of(const Token& token) const { return token.is_rotated() ? rotated : plain; }
};

Queries make_queries(const float* in, int32_t head_dim, float scale, bool any_rotated) {
  const auto channels = static_cast<size_t>(head_dim);
  if (!any_rotated) {
    return {make_query({in, channels}, scale), {}};
  }
  float rotated[kMaxHeadDim];
  std::copy_n(in, head_dim, rotated);
  rotate(rotated, head_dim);
  return {make_query({in, channels}, scale), make_query({rotated, channels}, scale)};
}

float score(const Query& query, const Token& token) {
  const int32_t head_dim = token.layout->head_dim;
  if (token.is_sparse()) {
    float key[kMaxHeadDim];
    token.sparse_key(key);
    if (sparse_keys(*token.layout).is_codes()) {
      return std::inner_product(key, key + head_dim, query.codes, 0.0f) * query.step;
    }
    return std::inner_product(key, key + head_dim, query.floats, 0.0f);
  }
  if (!token.is_codes()) {
    float dot = 0;
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      dot += query.floats[channel] * token.key(channel);
    }
    return dot;
  }
  int32_t dot = 0;
  for (int32_t channel = 0; channel < head_dim; ++channel) {
    dot += query.codes[channel] * token.key_code(channel);
  }
  return static_cast<float>(dot) * query.step * token.key_scale() + query.sum * token.key_zero();
}

// Online softmax of one query. `out` is the sum of 2^(score - maximum) * value, `sum` the sum of
// the weights.
struct Softmax {
  const Queries& queries;
  int32_t head_dim;
  float* out;  // [head_dim]
  float maximum = -std::numeric_limits<float>::max();
  float sum = 0;

  // Adds the tokens of one tile, all of one layout.
  void add(std::span<const Token> tokens) {
    float weights[kAttentionTile];
    const float before = maximum;
    for (size_t i = 0; i < tokens.size(); ++i) {
      weights[i] = score(queries.of(tokens[i]), tokens[i]);
      maximum = std::max(maximum, weights[i]);
    }
    const float correction = std::exp2(before - maximum);
    sum *= correction;
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      out[channel] *= correction;
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      weights[i] = std::exp2(weights[i] - maximum);
      sum += weights[i];
    }
    if (!tokens.empty()) {
      tokens[0].is_codes()    ? add_codes(tokens, weights)
      : tokens[0].is_sparse() ? add_sparse(tokens, weights)
                              : add_floats(tokens, weights);
    }
  }

  void add_floats(std::span<const Token> tokens, const float* weights) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (int32_t channel = 0; channel < head_dim; ++channel) {
        out[channel] += weights[i] * tokens[i].value(channel);
      }
    }
  }

  void add_sparse(std::span<const Token> tokens, const float* weights) {
    float value[kMaxHeadDim];
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i].sparse_value(value);
      for (int32_t channel = 0; channel < head_dim; ++channel) {
        out[channel] += weights[i] * value[channel];
      }
    }
  }

  void add_codes(std::span<const Token> tokens, const float* weights) {
    float scaled[kAttentionTile];
    float largest = 0;
    float zeros = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      scaled[i] = weights[i] * tokens[i].value_scale();
      largest = std::max(largest, scaled[i]);
      zeros += weights[i] * tokens[i].value_zero();
    }
    const float bounded = std::max(largest, kMinLargest);
    const float inverse = kCodeRange / bounded;
    const float step = bounded / kCodeRange;
    int32_t codes[kAttentionTile];
    for (size_t i = 0; i < tokens.size(); ++i) {
      codes[i] = static_cast<int32_t>(std::nearbyint(scaled[i] * inverse));
    }
    float values[kMaxHeadDim];
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      int32_t dot = 0;
      for (size_t i = 0; i < tokens.size(); ++i) {
        dot += codes[i] * tokens[i].value_code(channel);
      }
      values[channel] = static_cast<float>(dot) * step + zeros;
    }
    if (tokens[0].is_rotated()) {
      rotate(values, head_dim);
    }
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      out[channel] += values[channel];
    }
  }
};

// Inputs of one query row and head.
struct QueryRow {
  const AttentionArgs& args;
  const RowTokens& row;
  int32_t position;
  int32_t older_dense;

  Token high(int32_t i) const {
    const int32_t capacity = row.high_layout->capacity;
    return token_at(*row.high_layout, page(i / capacity), i % capacity);
  }
  Token low(int32_t i) const {
    const int32_t capacity = row.low_layout->capacity;
    return token_at(*row.low_layout, page(args.pages.row_pages - 1 - i / capacity), i % capacity);
  }
  Token dense(int32_t i) const { return token_at(args.pages.residual_layout, row.dense, i); }

  const std::byte* page(int32_t entry) const {
    TESSERA_CHECK(row.page_ids[entry] >= 0, "attention: the row has no page for a token");
    return args.pages.page(row.page_ids[entry]);
  }

  // Adds tokens [first, end) of a list, tile by tile. Tiles begin at multiples of kAttentionTile.
  template <class TokenAt>
  static void add(Softmax& softmax, int32_t first, int32_t end, TokenAt&& at) {
    Token tokens[kAttentionTile];
    while (first < end) {
      const int32_t tile_end = std::min(end, (first / kAttentionTile + 1) * kAttentionTile);
      size_t count = 0;
      for (; first < tile_end; ++first) {
        tokens[count++] = at(first);
      }
      softmax.add({tokens, count});
    }
  }

  void add_selected(Softmax& softmax) const {
    for (int32_t i = 0; i < row.read_tiles; ++i) {
      const bool is_high = row.read[i] < row.high_tiles();
      const int32_t first =
          (is_high ? row.read[i] : row.read[i] - row.high_tiles()) * kAttentionTile;
      const int32_t end = std::min(first + kAttentionTile, is_high ? row.high : row.low);
      add(softmax, first, end, [&](int32_t at) { return is_high ? high(at) : low(at); });
    }
  }

  void attend(const float* query_row, float* out, float* log_sum) const {
    const int32_t head_dim = args.pages.head_dim;
    const bool any_rotated = row.high_layout->format.rotated || row.low_layout->format.rotated;
    const Queries queries = make_queries(query_row, head_dim, args.scale, any_rotated);
    std::fill_n(out, head_dim, 0.0f);
    Softmax softmax{queries, head_dim, out};
    const int32_t first = first_visible(args, position);
    const int32_t group_begin = position / kKvGroup * kKvGroup;
    if (row.read == nullptr) {
      add(softmax, first, row.high, [&](int32_t i) { return high(i); });
      add(softmax, 0, row.low, [&](int32_t i) { return low(i); });
    } else {
      add_selected(softmax);
    }
    add(softmax, std::max(0, first - group_begin), position + 1 - group_begin,
        [&](int32_t i) { return dense(i); });
    add(softmax, kKvGroup - older_dense, kKvGroup, [&](int32_t i) { return dense(i); });
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      out[channel] /= softmax.sum;
    }
    if (log_sum != nullptr) {
      *log_sum = softmax.maximum * kLn2 + std::log(softmax.sum);
    }
  }
};

}  // namespace

int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t) {
  return limits.selects ? TileSelection::scratch_bytes(
                              int64_t{std::min(limits.sequences, limits.tokens)} * query_heads, 1,
                              limits.context)
                        : 0;
}

void attention(const AttentionArgs& args, Stream stream) {
  check_attention(args);
  const int32_t head_dim = args.pages.head_dim;
  const int32_t group = args.query_heads / args.pages.kv_heads;
  const TileSelection selection(args, args.scratch.data());
  TESSERA_CHECK(selection.bytes() <= std::ssize(args.scratch), "attention: scratch is too small");
  for (int64_t row = 0; selection.any() && row < selection.rows(); ++row) {
    selection.choose(row, ScalarSketch::add);
  }
  int64_t first_dense = 0;
  for (const SequenceSpan& span : args.sequences) {
    const int64_t first_selected = (&span - args.sequences.data()) * args.pages.kv_heads;
    const int64_t items = int64_t{span.count} * args.query_heads;
    ThreadPool::of(stream).parallel_for(items, 1, [&](int64_t item, int64_t, int) {
      const int64_t row = span.first_row + item / args.query_heads;
      const int32_t head = static_cast<int32_t>(item % args.query_heads);
      const int32_t position = span.context + static_cast<int32_t>(item / args.query_heads);
      const RowTokens tokens =
          selection.tokens(first_selected + head / group, first_dense, position / kKvGroup);
      const int64_t column = int64_t{head} * head_dim;
      QueryRow{args, tokens, position, older_dense(args, span)}.attend(
          args.queries.row(row).data() + column, args.out.row(row).data() + column,
          args.log_sums.data != nullptr ? &args.log_sums.row(row)[static_cast<size_t>(head)]
                                        : nullptr);
    });
    first_dense += dense_groups(span);
  }
}

}  // namespace tessera::scalar
