#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <random>
#include <span>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cpu/tiles/half_step.h"
#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_rows.h"
#include "tests/kernels/seen_token.h"
#include "tests/kernels/step_plan.h"

namespace tessera {

struct AttentionShape {
  KvFormat high = kKvF16;
  KvFormat low = kKvF16;
  int32_t head_dim = 16;
  int32_t kv_heads = 2;
  int32_t gqa_ratio = 2;
  int32_t page_tokens = 16;
  int32_t sliding_window = 0;
  float spread = 2.0f;  // of queries: a large spread spreads the scores
  // Tokens that the rows of a sequence hold before its first token, which is then at position
  // `context`. Heads differ: head h has high + 21 h and low + 13 h tokens.
  int32_t context = 0;
  int32_t history_high = 0;
  int32_t history_low = 0;
  bool coded_residuals = false;
  // Limit of a step's sequences, for each that it has. With several, CUDA lists the splits of
  // sequences with a few new tokens.
  int32_t room = 8;
  bool divide_splits = true;  // PlanAttentionArgs::divide_splits

  int32_t query_heads() const { return kv_heads * gqa_ratio; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
  KvRow history(int32_t head) const {
    return context == 0 ? KvRow{} : KvRow{history_high + 21 * head, history_low + 13 * head};
  }
};

inline void PrintTo(KvFormat format, std::ostream* out) {
  *out << name_of(format);
}

inline void PrintTo(const AttentionShape& shape, std::ostream* out) {
  PrintTo(shape.high, out);
  *out << " and ";
  PrintTo(shape.low, out);
  *out << " head_dim " << shape.head_dim << " kv_heads " << shape.kv_heads << " group "
       << shape.gqa_ratio << " page_tokens " << shape.page_tokens << " window "
       << shape.sliding_window << " history " << shape.context << ": " << shape.history_high << ", "
       << shape.history_low << (shape.coded_residuals ? " coded residuals" : "");
}

// One part of a step: `count` further tokens of a sequence.
struct Chunk {
  int32_t sequence;
  int32_t count;
};
using Steps = std::vector<std::vector<Chunk>>;

// Output of attention for each sequence.
struct Attended {
  std::vector<std::vector<float>> out;       // [sequences][length, query_heads * head_dim]
  std::vector<std::vector<float>> log_sums;  // [sequences][length, query_heads]
};

// Sequences with random queries, keys and values, whose attention can be computed in any chunks.
class AttentionSequences {
 public:
  AttentionSequences(const AttentionShape& shape, std::vector<int32_t> lengths, uint32_t seed)
      : shape_(shape), lengths_(std::move(lengths)), seed_(seed) {
    std::mt19937 random(seed);
    for (const int32_t length : lengths_) {
      queries_.push_back(random_floats(random, int64_t{length} * query_cols(), shape.spread));
      keys_.push_back(dense_floats(random, int64_t{length} * kv_cols()));
      values_.push_back(dense_floats(random, int64_t{length} * kv_cols()));
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        const KvRow row = shape.history(head);
        const int64_t floats = int64_t{row.high + row.low} * shape.head_dim;
        history_keys_.push_back(dense_floats(random, floats));
        history_values_.push_back(dense_floats(random, floats));
      }
    }
  }

  const AttentionShape& shape() const { return shape_; }
  const std::vector<int32_t>& lengths() const { return lengths_; }

  // Each whole sequence as one chunk of one step.
  Steps all_at_once() const {
    std::vector<Chunk> step;
    for (size_t i = 0; i < lengths_.size(); ++i) {
      step.push_back({static_cast<int32_t>(i), lengths_[i]});
    }
    return {step};
  }

  // Random chunks, mostly small, of randomly chosen sequences in each step.
  Steps random_steps(uint32_t seed, int32_t longest) const {
    std::mt19937 random(seed);
    std::vector<int32_t> left = lengths_;
    Steps steps;
    for (bool more = true; more;) {
      more = false;
      std::vector<Chunk> step;
      for (size_t i = 0; i < left.size(); ++i) {
        if (left[i] > 0 && random() % 3 != 0) {
          const int32_t max = random() % 2 == 0 ? 1 : std::min(left[i], longest);
          const int32_t count = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(max));
          step.push_back({static_cast<int32_t>(i), count});
          left[i] -= count;
        }
        more = more || left[i] > 0;
      }
      if (!step.empty()) {
        std::shuffle(step.begin(), step.end(), random);
        steps.push_back(step);
      }
    }
    return steps;
  }

  // Stores and attends step by step.
  Attended run(const Backend& backend, int threads, const Steps& steps) const {
    ThreadPool pool(threads);
    return run({.name = "", .backend = &backend, .stream = pool.stream()}, steps);
  }
  Attended run(const Device& device, const Steps& steps) const {
    std::mt19937 random(seed_ + 1);
    KvRows rows(rows_shape(), random);
    put_history(rows);
    std::vector<int32_t> done(lengths_.size(), 0);
    Attended attended{std::vector<std::vector<float>>(lengths_.size()),
                      std::vector<std::vector<float>>(lengths_.size())};
    for (const std::vector<Chunk>& step : steps) {
      run_step(device, rows, step, done, attended);
    }
    return attended;
  }

  // Result of attention in double precision, and the error bounds of a kernel.
  struct Expected {
    double log_sum = 0;
    double log_sum_bound = 0;
    std::vector<double> values;  // [head_dim]
    std::vector<double> bounds;
  };

  using Against = SeenAgainst;
  using Seen = SeenToken;
  // Arithmetic on sparse pages: f32, or f16 for all but keys of codes.
  enum class Sparse { f32, halves };

  static constexpr double kUnit = 0x1p-24;  // u below
  // Bounds, with u = 2^-24:
  //
  // Scores of codes. The query is rounded to steps of s = max|q| / 32512. The error is half a step
  // each, and one hundredth of it for the f32 division, times the key without its zero. The f32
  // sums and products are off by (head_dim + 16) u of M = sum |q| |key - zero| + |zero| sum |q|.
  // Scores of floats: (head_dim + 12) u of M = sum |q key|. Against the originals, a key's own
  // error times sum |q| is added. With 2^-22 for the exponential, the total is e. A weight has the
  // relative error expm1(e), and twice that after normalisation.
  //
  // Sums of values. Each token adds u, and each tile a correction of 2^-22, of the magnitudes.
  // Codes: weight times scale is rounded to steps of its tile's largest / 32512. The error is again
  // half a step and a hundredth, times the value without its zero. Against the originals, the
  // value's error is added.
  //
  // Rotated codes: the same in rotated channels, of which only bounds are known here. With blocks
  // of b channels, no rotated query channel exceeds the sum of |q|. An error of each rotated
  // channel is at most sqrt(b) times as large in a plain one.
  //
  // Halves (half_step.h), h = 2^-11. A score: the query is rounded, a lane adds head_dim / 8
  // products, and lanes are added three times. Each is off by h of M, or else by 2^-25 of a query
  // scaled to half_query_range. A sum of values: the weight is rounded, and kAttentionTile products
  // are added. Each is off by h of the magnitudes, or else by 2^-25 of weights scaled to
  // kHalfWeightRange. The effect of these roundings on each other is within a twentieth.
  Expected expected(size_t sequence, int32_t row, int32_t query_head, Against against,
                    Sparse sparse = Sparse::f32) const {
    const size_t hd = static_cast<size_t>(shape_.head_dim);
    const float* q = &queries_[sequence][static_cast<size_t>(row * query_cols()) +
                                         static_cast<size_t>(query_head) * hd];
    std::vector<Seen> seen = seen_by(sequence, row, query_head / shape_.gqa_ratio, against);
    if (sparse == Sparse::f32) {
      for (Seen& token : seen) {
        token.key_halves = false;
        token.value_unit = 0;
      }
    }
    const double scale = double{shape_.scale()};
    double query_sum = 0;
    double query_largest = 0;
    for (size_t c = 0; c < hd; ++c) {
      query_sum += std::abs(double{q[c]}) * scale;
      query_largest = std::max(query_largest, std::abs(double{q[c]}) * scale);
    }
    std::vector<double> scores;
    double error = 0;
    double maximum = -INFINITY;
    for (const Seen& token : seen) {
      double score = 0;
      double magnitude = 0;
      double lifted = 0;  // sum of |key - zero|
      const double zero = zero_of(token.key, token.key_step);
      for (size_t c = 0; c < hd; ++c) {
        score += double{q[c]} * token.key[c] * scale;
        magnitude += std::abs(double{q[c]}) * scale * std::abs(token.key[c] - zero);
        lifted += std::abs(token.key[c] - zero);
      }
      magnitude += std::abs(zero) * query_sum;
      double rounding = token.key_step > 0 ? 0.51 * query_largest / 32512 * lifted : 0;
      if (token.rotated_keys > 0) {
        magnitude = token.rotated_keys * query_sum;
        rounding = 0.51 * query_sum / 32512 * token.rotated_keys;
      }
      error = std::max(error,
                       rounding + (static_cast<double>(hd) + 16) * kUnit * magnitude +
                           token.key_error * query_sum +
                           (token.key_halves ? half_error(query_largest, magnitude, lifted) : 0));
      scores.push_back(score);
      maximum = std::max(maximum, score);
    }
    return weighted(seen, scores, maximum, error + 0x1p-22);
  }

 private:
  int64_t query_cols() const { return int64_t{shape_.query_heads()} * shape_.head_dim; }
  int64_t kv_cols() const { return int64_t{shape_.kv_heads} * shape_.head_dim; }
  bool is_f32() const { return shape_.high == kKvF32; }

  static constexpr int32_t kLayer = 1;  // of two, so that a missing layer index shows
  KvTiers tiers() const { return {0, static_cast<uint8_t>(shape_.sliding_window > 0 ? 0 : 1)}; }

  // Numbers as a dense page holds them: f16, unless everything is f32.
  std::vector<float> dense_floats(std::mt19937& random, int64_t count) const {
    std::vector<float> floats = random_floats(random, count);
    if (!is_f32()) {
      std::transform(floats.begin(), floats.end(), floats.begin(),
                     [](float x) { return to_f32(to_f16(x)); });
    }
    return floats;
  }

  std::span<const float> token(const std::vector<float>& floats, int64_t at) const {
    return {floats.data() + at * shape_.head_dim, static_cast<size_t>(shape_.head_dim)};
  }

  // Codes begin at the lowest number.
  static double zero_of(const std::vector<double>& numbers, double step) {
    return step > 0 ? *std::min_element(numbers.begin(), numbers.end()) : 0;
  }

  // Error of a score whose products of a query and a key of these magnitudes are f16.
  double half_error(double query_largest, double magnitude, double key_sum) const {
    const double head_dim = shape_.head_dim;
    const double min = 0x1p-25 * query_largest / double{half_query_range(shape_.head_dim)};
    return 1.05 * (head_dim / 8 + 4) * 0x1p-11 * magnitude + min * (key_sum + head_dim + 7);
  }

  Expected weighted(const std::vector<Seen>& seen, const std::vector<double>& scores,
                    double maximum, double error) const {
    const size_t hd = static_cast<size_t>(shape_.head_dim);
    const double n = static_cast<double>(seen.size());
    const double relative = 2 * std::expm1(error) + 2 * n * kUnit + n / 16 * 0x1p-22 + 0x1p-20;
    std::vector<double> weights;
    std::vector<double> zeros;
    double sum = 0;
    double largest = 0;       // weight * scale
    double largest_half = 0;  // weight * unit, for values multiplied as f16
    for (size_t t = 0; t < seen.size(); ++t) {
      weights.push_back(std::exp(scores[t] - maximum));
      zeros.push_back(seen[t].rotated_values > 0 ? 0 : zero_of(seen[t].value, seen[t].value_step));
      sum += weights[t];
      largest = std::max(largest, weights[t] * seen[t].value_step);
      largest_half = std::max(largest_half, weights[t] * seen[t].value_unit);
    }
    const double min = 0x1p-25 / double{kHalfWeightRange} * largest_half;
    Expected expected;
    expected.log_sum = maximum + std::log(sum);
    expected.log_sum_bound = error + n * kUnit + 0x1p-20 * (1 + std::abs(maximum));
    for (size_t c = 0; c < hd; ++c) {
      double value = 0;
      double bound = 0;
      for (size_t t = 0; t < seen.size(); ++t) {
        const Seen& token = seen[t];
        const double lifted =
            token.rotated_values > 0 ? token.rotated_values : std::abs(token.value[c] - zeros[t]);
        value += weights[t] * token.value[c];
        bound += weights[t] * (relative * (lifted + std::abs(zeros[t])) + token.value_error);
        bound += token.value_step > 0 ? 0.51 * largest / 32512 * lifted / token.value_step : 0;
        if (token.value_unit > 0) {
          bound += 1.05 * (1 + kAttentionTile) * 0x1p-11 * weights[t] * lifted;
          bound += min * (lifted / token.value_unit + 1);
        }
      }
      expected.values.push_back(value / sum);
      expected.bounds.push_back(bound / sum);
    }
    return expected;
  }

  // Tokens of a KV head that row `row` of a sequence sees: its history, the groups before its own,
  // and its own group up to itself.
  std::vector<Seen> seen_by(size_t sequence, int32_t row, int32_t head, Against against) const {
    std::vector<Seen> seen;
    const size_t history =
        sequence * static_cast<size_t>(shape_.kv_heads) + static_cast<size_t>(head);
    const KvRow before = shape_.history(head);
    for (int32_t i = 0; i < before.high + before.low; ++i) {
      seen.push_back(seen_as(i < before.high ? shape_.high : shape_.low,
                             token(history_keys_[history], i), token(history_values_[history], i),
                             against));
    }
    const int32_t first =
        shape_.sliding_window > 0 ? std::max(0, row + 1 - shape_.sliding_window) : 0;
    for (int32_t i = first; i <= row; ++i) {
      const bool closed = i / kKvGroup < row / kKvGroup;
      const int64_t at = int64_t{i} * shape_.kv_heads + head;
      const KvFormat own = shape_.coded_residuals ? kKvK8V8 : kKvF32;
      seen.push_back(seen_as(closed ? shape_.high : own, token(keys_[sequence], at),
                             token(values_[sequence], at), against));
    }
    return seen;
  }

  KvRows::Shape rows_shape() const {
    const KvRow max = shape_.history(shape_.kv_heads - 1);
    return {.formats = {shape_.high, shape_.low},
            .head_dim = shape_.head_dim,
            .page_tokens = shape_.page_tokens,
            .slots = static_cast<int32_t>(lengths_.size()),
            .layers = 2,
            .kv_heads = shape_.kv_heads,
            .row_tokens = max.high + max.low + *std::max_element(lengths_.begin(), lengths_.end()),
            .coded_residuals = shape_.coded_residuals};
  }

  // Slots are in reverse order, so that a slot never equals the index of its sequence by chance.
  int32_t slot_of(size_t sequence) const {
    return static_cast<int32_t>(lengths_.size() - 1 - sequence);
  }

  void put_history(KvRows& rows) const {
    for (size_t i = 0; i < history_keys_.size(); ++i) {
      const int32_t head = static_cast<int32_t>(i) % shape_.kv_heads;
      const int64_t row =
          rows.view().row_index(slot_of(i / static_cast<size_t>(shape_.kv_heads)), kLayer, head);
      const KvRow history = shape_.history(head);
      for (int32_t t = 0; t < history.high + history.low; ++t) {
        const auto keys = token(history_keys_[i], t);
        const auto values = token(history_values_[i], t);
        if (t < history.high) {
          rows.append_high(row, tiers().high, keys, values);
        } else {
          rows.append_low(row, tiers().low, keys, values);
        }
      }
    }
  }

  // Does the work of kv_store for tokens [first, first + count) of a sequence. `dense` receives all
  // groups but the last.
  void put_chunk(KvRows& rows, size_t sequence, int32_t first, int32_t count,
                 std::byte* dense) const {
    const KvPagesView& view = rows.view();
    const int32_t end = first + count;
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const int64_t row = view.row_index(slot_of(sequence), kLayer, head);
      for (int32_t i = first / kKvGroup * kKvGroup; i < end; ++i) {
        const int64_t at = int64_t{i} * shape_.kv_heads + head;
        const auto keys = token(keys_[sequence], at);
        const auto values = token(values_[sequence], at);
        const int64_t ahead = i / kKvGroup - first / kKvGroup;  // groups
        std::byte* page =
            i / kKvGroup == (end - 1) / kKvGroup
                ? view.residual(row)
                : dense + (ahead * shape_.kv_heads + head) * view.residual_layout.page_bytes;
        KvRows::put(view.residual_layout, page, i % kKvGroup, keys, values);
        if (i / kKvGroup < end / kKvGroup) {
          rows.append_high(row, tiers().high, keys, values);
        }
      }
    }
  }

  void run_step(const Device& device, KvRows& rows, const std::vector<Chunk>& step,
                std::vector<int32_t>& done, Attended& attended) const {
    std::vector<SequenceSpan> spans;
    std::vector<float> queries;
    int32_t count = 0;
    int64_t groups = 0;
    for (const Chunk& chunk : step) {
      const size_t i = static_cast<size_t>(chunk.sequence);
      spans.push_back({slot_of(i), count, chunk.count, shape_.context + done[i], tiers()});
      const auto from = queries_[i].begin() + done[i] * query_cols();
      queries.insert(queries.end(), from, from + chunk.count * query_cols());
      count += chunk.count;
      groups += dense_groups(spans.back());
    }
    const int64_t group_bytes = shape_.kv_heads * rows.view().residual_layout.page_bytes;
    std::vector<std::byte> memory(static_cast<size_t>(groups * group_bytes) + KvRows::kAlign,
                                  std::byte{0xff});
    std::byte* dense = KvRows::aligned(memory);
    int64_t dense_group = 0;
    for (size_t c = 0; c < step.size(); ++c) {
      const size_t i = static_cast<size_t>(step[c].sequence);
      put_chunk(rows, i, done[i], step[c].count, dense + dense_group * group_bytes);
      dense_group += dense_groups(spans[c]);
      done[i] += step[c].count;
    }
    const StepLimits limits{count, shape_.room * static_cast<int32_t>(step.size()),
                            shape_.context + *std::max_element(lengths_.begin(), lengths_.end())};
    std::vector<float> out(static_cast<size_t>(count * query_cols()), NAN);
    std::vector<float> log_sums(static_cast<size_t>(count * shape_.query_heads()), NAN);
    std::vector<std::byte> scratch(static_cast<size_t>(
        device.backend->attention_scratch_bytes(limits, shape_.query_heads(), shape_.head_dim)));
    AttentionArgs args{
        .queries = {queries.data(), count, query_cols(), query_cols()},
        .sequences = spans,
        .pages = rows.view(),
        .layer = kLayer,
        .query_heads = shape_.query_heads(),
        .scale = shape_.scale(),
        .sliding_window = shape_.sliding_window,
        .dense = {dense, static_cast<size_t>(groups * group_bytes)},
        .out = {out.data(), count, query_cols(), query_cols()},
        .log_sums = {log_sums.data(), count, shape_.query_heads(), shape_.query_heads()},
        .scratch = scratch};
    const std::vector<std::byte> plan = plan_step(device, limits, args, shape_.divide_splits);
    device.backend->attention(args, device.stream);
    device.wait(device.stream);
    const auto append = [](std::vector<float>& to, const std::vector<float>& from, int64_t first,
                           int64_t rows_of, int64_t cols) {
      to.insert(to.end(), from.begin() + first * cols, from.begin() + (first + rows_of) * cols);
    };
    for (size_t c = 0; c < step.size(); ++c) {
      const size_t i = static_cast<size_t>(step[c].sequence);
      append(attended.out[i], out, spans[c].first_row, spans[c].count, query_cols());
      append(attended.log_sums[i], log_sums, spans[c].first_row, spans[c].count,
             shape_.query_heads());
    }
  }

  AttentionShape shape_;
  std::vector<int32_t> lengths_;
  uint32_t seed_;
  std::vector<std::vector<float>> queries_;         // [sequences][length, query_heads * head_dim]
  std::vector<std::vector<float>> keys_;            // [sequences][length, kv_heads * head_dim]
  std::vector<std::vector<float>> values_;          // [sequences][length, kv_heads * head_dim]
  std::vector<std::vector<float>> history_keys_;    // [sequences * kv_heads][tokens, head_dim]
  std::vector<std::vector<float>> history_values_;  // [sequences * kv_heads][tokens, head_dim]
};

}  // namespace tessera
