#include <cmath>

#include "base/check.h"
#include "kernels/cpu/recurrence/delta_step.h"
#include "kernels/cpu/recurrence/recurrence_ops.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

// Returns: 1 / length of a query or key. The additions have one order for every instruction set.
float inverse_length(std::span<const float> vector) {
  constexpr float kEpsilon = 1e-6f;
  float squares = 0;
  for (const float element : vector) squares += element * element;
  return 1 / std::sqrt(squares + kEpsilon);
}

void check_widths(const DeltaRuleArgs& args) {
  TESSERA_CHECK(args.value_heads > 0 && args.key_dim > 0, "delta_rule: no heads");
  TESSERA_CHECK(args.queries.cols == args.keys.cols && args.keys.cols % args.key_dim == 0,
                "delta_rule: widths of queries and keys");
  TESSERA_CHECK(args.value_heads % (args.keys.cols / args.key_dim) == 0,
                "delta_rule: value heads of each key head");
  TESSERA_CHECK(args.values.cols % args.value_heads == 0 && args.out.cols == args.values.cols,
                "delta_rule: widths of values");
  TESSERA_CHECK(args.states.cols == args.key_dim * args.values.cols, "delta_rule: states");
  TESSERA_CHECK(args.decays.cols == args.value_heads && args.rates.cols == args.value_heads,
                "delta_rule: a decay and a rate for each head");
}

void take_tokens(const DeltaRuleArgs& args, const StateSpan& sequence, int64_t head,
                 TakeDeltaStep* take) {
  const int64_t key_dim = args.key_dim;
  const int64_t value_dim = args.values.cols / args.value_heads;
  const int64_t key_heads = args.keys.cols / key_dim;
  const int64_t key_head = head / (args.value_heads / key_heads);
  const auto key_part = [&](const MatrixView<const float>& of, int64_t row) {
    return of.columns(key_head * key_dim, key_dim).row(row);
  };
  const float scale = 1 / std::sqrt(static_cast<float>(key_dim));
  for (int64_t row = sequence.first_row; row < sequence.first_row + sequence.count; ++row) {
    const std::span<const float> query = key_part(args.queries, row);
    const std::span<const float> key = key_part(args.keys, row);
    const auto at = static_cast<size_t>(head);
    take({.query = query.data(),
          .key = key.data(),
          .value = args.values.row(row).data() + head * value_dim,
          .query_factor = args.normalise ? scale * inverse_length(query) : scale,
          .key_factor = args.normalise ? inverse_length(key) : 1,
          .decay = std::exp(args.decays.row(row)[at]),
          .rate = args.rates.row(row)[at],
          .key_dim = key_dim,
          .value_dim = value_dim,
          .state = args.states.row(sequence.slot).data() + head * key_dim * value_dim,
          .out = args.out.row(row).data() + head * value_dim});
  }
}

void take_sequences(const DeltaRuleArgs& args, TakeDeltaStep* take, Stream stream) {
  check_widths(args);
  const auto heads = static_cast<int64_t>(args.sequences.size()) * args.value_heads;
  ThreadPool::of(stream).parallel_for(heads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      take_tokens(args, args.sequences[static_cast<size_t>(i / args.value_heads)],
                  i % args.value_heads, take);
    }
  });
}

}  // namespace

namespace scalar {
void delta_rule(const DeltaRuleArgs& args, Stream stream) {
  take_sequences(args, take_delta_step, stream);
}
}  // namespace scalar

namespace avx2 {
void delta_rule(const DeltaRuleArgs& args, Stream stream) {
  take_sequences(args, take_delta_step, stream);
}
}  // namespace avx2

namespace avx512 {
void delta_rule(const DeltaRuleArgs& args, Stream stream) {
  take_sequences(args, take_delta_step, stream);
}
}  // namespace avx512

}  // namespace tessera
