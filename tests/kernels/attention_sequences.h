#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_arena.h"

namespace tessera {

inline std::vector<CpuIsa> isas_of_this_machine() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512}) {
    if (cpu_supports(isa)) {
      isas.push_back(isa);
    }
  }
  return isas;
}

inline std::vector<float> random_floats(std::mt19937& random, int64_t count, float spread = 1.0f) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> floats(static_cast<size_t>(count));
  for (float& x : floats) {
    x = normal(random);
  }
  return floats;
}

struct AttentionShape {
  KvFormat format = kKvF16;
  int32_t head_dim = 16;
  int32_t kv_heads = 2;
  int32_t group = 2;
  int32_t page_tokens = 16;
  int32_t window = 0;

  int32_t query_heads() const { return kv_heads * group; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
};

inline void PrintTo(const AttentionShape& shape, std::ostream* out) {
  *out << "k" << int{shape.format.key_bits} << "v" << int{shape.format.value_bits} << " head_dim "
       << shape.head_dim << " kv_heads " << shape.kv_heads << " group " << shape.group
       << " page_tokens " << shape.page_tokens << " window " << shape.window;
}

// One part of a step: `count` further tokens of a sequence.
struct Chunk {
  int32_t sequence;
  int32_t count;
};

// Sequences with random queries, keys and values, whose attention can be computed in any chunks.
class AttentionSequences {
 public:
  AttentionSequences(const AttentionShape& shape, std::vector<int32_t> lengths, uint32_t seed)
      : shape_(shape), lengths_(std::move(lengths)) {
    std::mt19937 random(seed);
    for (const int32_t length : lengths_) {
      // Queries of twice the usual size: scores spread, and the maximum rises now and then.
      queries_.push_back(random_floats(random, int64_t{length} * query_cols(), 2.0f));
      keys_.push_back(random_floats(random, int64_t{length} * kv_cols()));
      values_.push_back(random_floats(random, int64_t{length} * kv_cols()));
    }
  }

  const AttentionShape& shape() const { return shape_; }
  const std::vector<int32_t>& lengths() const { return lengths_; }

  // The whole of each sequence as one chunk of one step.
  std::vector<std::vector<Chunk>> all_at_once() const {
    std::vector<Chunk> step;
    for (size_t i = 0; i < lengths_.size(); ++i) {
      step.push_back({static_cast<int32_t>(i), lengths_[i]});
    }
    return {step};
  }

  // Random chunks, mostly small ones, of a random choice of sequences in each step.
  std::vector<std::vector<Chunk>> random_steps(uint32_t seed, int32_t longest) const {
    std::mt19937 random(seed);
    std::vector<int32_t> left = lengths_;
    std::vector<std::vector<Chunk>> steps;
    for (bool more = true; more;) {
      more = false;
      std::vector<Chunk> step;
      for (size_t i = 0; i < left.size(); ++i) {
        if (left[i] > 0 && random() % 3 != 0) {
          const int32_t most = random() % 2 == 0 ? 1 : std::min(left[i], longest);
          const int32_t count = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(most));
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

  // Stores and attends step by step; returns [sequences][length, query_heads * head_dim].
  std::vector<std::vector<float>> run(const Backend& backend, int threads,
                                      const std::vector<std::vector<Chunk>>& steps) const {
    ThreadPool pool(threads);
    const std::unique_ptr<KvArena> arena = make_arena();
    std::vector<int32_t> done(lengths_.size(), 0);
    std::vector<std::vector<float>> out(lengths_.size());
    for (const std::vector<Chunk>& step : steps) {
      run_step(backend, pool, *arena, step, done, out);
    }
    arena->check_integrity();
    return out;
  }

  // What attention is, in double precision over the unrounded inputs, and how far a kernel may be
  // from it. Let A be the largest sum of |q k| of a row, u = 2^-24, e = 2^-11 for f16, else 0. A
  // score is off by at most A (e + (head_dim + 8) u) with the roundings of its scale, of its
  // distance from the maximum (2 u A each) and of the exponential (2^-22). A weight is off by that
  // relatively, its normalised form by twice that; each tile adds a correction (2^-22) and each
  // token an addition (u) to the sums of weights and of values; a value is off by e of itself.
  struct Expected {
    double value;
    double bound;
  };
  Expected expected(size_t sequence, int32_t position, int32_t query_head, int32_t channel) const {
    const int64_t hd = shape_.head_dim;
    const float* q =
        &queries_[sequence][static_cast<size_t>(position * query_cols() + query_head * hd)];
    const int64_t column = query_head / shape_.group * hd;
    const int32_t first = shape_.window > 0 ? std::max(0, position + 1 - shape_.window) : 0;
    std::vector<double> scores;
    double largest = 0;
    double maximum = -INFINITY;
    for (int32_t t = first; t <= position; ++t) {
      const float* k = &keys_[sequence][static_cast<size_t>(t * kv_cols() + column)];
      double dot = 0;
      double magnitude = 0;
      for (int64_t c = 0; c < hd; ++c) {
        dot += double{q[c]} * double{k[c]};
        magnitude += std::abs(double{q[c]} * double{k[c]});
      }
      scores.push_back(dot * double{shape_.scale()});
      largest = std::max(largest, magnitude * double{shape_.scale()});
      maximum = std::max(maximum, scores.back());
    }
    double sum = 0;
    double weighted = 0;
    double magnitude = 0;
    for (int32_t t = first; t <= position; ++t) {
      const double v =
          double{values_[sequence][static_cast<size_t>(t * kv_cols() + column + channel)]};
      const double weight = std::exp(scores[static_cast<size_t>(t - first)] - maximum);
      sum += weight;
      weighted += weight * v;
      magnitude += weight * std::abs(v);
    }
    const double u = 0x1p-24;
    const double key_error = shape_.format.key_bits == 16 ? 0x1p-11 : 0;
    const double value_error = shape_.format.value_bits == 16 ? 0x1p-11 : 0;
    const double n = position + 1 - first;
    const double score_error = largest * (key_error + (static_cast<double>(hd) + 12) * u) + 0x1p-22;
    const double relative =
        2 * std::expm1(score_error) + value_error + 2 * n * u + n / 32 * 0x1p-22 + 0x1p-21;
    return {weighted / sum, relative * magnitude / sum};
  }

 private:
  int64_t query_cols() const { return int64_t{shape_.query_heads()} * shape_.head_dim; }
  int64_t kv_cols() const { return int64_t{shape_.kv_heads} * shape_.head_dim; }

  static constexpr int32_t kLayer = 1;  // of two, so that a forgotten layer index shows

  std::unique_ptr<KvArena> make_arena() const {
    KvArenaShape arena{
        .layout = KvPageLayout::make(shape_.format, shape_.head_dim, shape_.page_tokens),
        .slots = static_cast<int32_t>(lengths_.size()),
        .layers = 2,
        .kv_heads = shape_.kv_heads,
        .context = *std::max_element(lengths_.begin(), lengths_.end())};
    arena.pages = arena.slots * arena.layers * arena.kv_heads * arena.row_pages();
    std::unique_ptr<KvArena> made = KvArena::make(arena);
    // What a page held before must not show: NaN in every word.
    std::fill_n(made->view().arena, arena.arena_bytes(), std::byte{0xff});
    return made;
  }

  void run_step(const Backend& backend, ThreadPool& pool, KvArena& arena,
                const std::vector<Chunk>& step, std::vector<int32_t>& done,
                std::vector<std::vector<float>>& out) const {
    const int32_t capacity = arena.shape().layout.capacity;
    std::vector<SequenceSpan> spans;
    std::vector<KvRowResize> changes;
    std::vector<float> queries, keys, values;
    int32_t rows = 0;
    const auto append = [](std::vector<float>& to, const std::vector<float>& from, int64_t first,
                           int64_t count, int64_t cols) {
      to.insert(to.end(), from.begin() + first * cols, from.begin() + (first + count) * cols);
    };
    for (const Chunk& chunk : step) {
      const size_t i = static_cast<size_t>(chunk.sequence);
      // Slots in reverse, so that a slot is not by chance the index of its sequence.
      const int32_t slot = static_cast<int32_t>(lengths_.size()) - 1 - chunk.sequence;
      spans.push_back({slot, rows, chunk.count, done[i]});
      changes.push_back({slot, static_cast<int32_t>(div_ceil(done[i], capacity)),
                         static_cast<int32_t>(div_ceil(done[i] + chunk.count, capacity))});
      append(queries, queries_[i], done[i], chunk.count, query_cols());
      append(keys, keys_[i], done[i], chunk.count, kv_cols());
      append(values, values_[i], done[i], chunk.count, kv_cols());
      rows += chunk.count;
      done[i] += chunk.count;
    }
    backend.kv_resize({.pool = arena.pool(), .changes = changes}, pool.stream());
    backend.kv_store({.keys = {keys.data(), rows, kv_cols(), kv_cols()},
                      .values = {values.data(), rows, kv_cols(), kv_cols()},
                      .sequences = spans,
                      .pages = arena.view(),
                      .layer = kLayer},
                     pool.stream());
    std::vector<float> result(static_cast<size_t>(rows * query_cols()), NAN);
    const StepLimits limits{rows, static_cast<int32_t>(step.size()), arena.shape().context};
    std::vector<std::byte> scratch(static_cast<size_t>(
        backend.attention_scratch_bytes(limits, shape_.query_heads(), shape_.head_dim)));
    backend.attention({.queries = {queries.data(), rows, query_cols(), query_cols()},
                       .sequences = spans,
                       .pages = arena.view(),
                       .layer = kLayer,
                       .query_heads = shape_.query_heads(),
                       .scale = shape_.scale(),
                       .window = shape_.window,
                       .out = {result.data(), rows, query_cols(), query_cols()},
                       .scratch = scratch},
                      pool.stream());
    for (size_t c = 0; c < step.size(); ++c) {
      append(out[static_cast<size_t>(step[c].sequence)], result, spans[c].first_row, spans[c].count,
             query_cols());
    }
  }

  AttentionShape shape_;
  std::vector<int32_t> lengths_;
  std::vector<std::vector<float>> queries_;  // [sequences][length, query_heads * head_dim]
  std::vector<std::vector<float>> keys_;     // [sequences][length, kv_heads * head_dim]
  std::vector<std::vector<float>> values_;   // [sequences][length, kv_heads * head_dim]
};

}  // namespace tessera
