#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/experts/experts_ops.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

constexpr int64_t kGrainFloats = 4096;  // a few microseconds of work

int64_t rows_per_range(int64_t cols) {
  return std::max<int64_t>(1, kGrainFloats / cols);
}

// Orders logits from the largest on, equal ones by their index.
bool comes_before(std::span<const float> logits, int32_t a, int32_t b) {
  const auto value = [&](int32_t expert) {
    const float logit = logits[static_cast<size_t>(expert)];
    return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
  };
  const float left = value(a);
  const float right = value(b);
  return left != right ? left > right : a < b;
}

// Returns: the expert that follows `last` in that order; the first one if `last` is -1.
int32_t next_largest(std::span<const float> logits, int32_t last) {
  int32_t best = -1;
  for (int32_t i = 0; std::cmp_less(i, logits.size()); ++i) {
    if (last >= 0 && !comes_before(logits, last, i)) continue;
    if (best < 0 || comes_before(logits, i, best)) best = i;
  }
  return best;
}

// Chooses the experts of one token, in ascending order.
void choose(std::span<const float> logits, bool normalise, std::span<int32_t> experts,
            std::span<float> weights) {
  int32_t last = -1;
  for (int32_t& expert : experts) {
    expert = last = next_largest(logits, last);
  }
  const float largest = logits[static_cast<size_t>(experts.front())];
  std::sort(experts.begin(), experts.end());
  float chosen_sum = 0;
  for (size_t i = 0; i < experts.size(); ++i) {
    weights[i] = std::exp(logits[static_cast<size_t>(experts[i])] - largest);
    chosen_sum += weights[i];
  }
  float sum = chosen_sum;
  if (!normalise) {
    sum = 0;
    for (const float logit : logits) {
      sum += std::exp(logit - largest);
    }
  }
  for (float& weight : weights) {
    weight /= sum;
  }
}

// Turns `places` from experts into rows.
void group_by_expert(const RouteArgs& args) {
  const ExpertRows& rows = args.rows;
  const auto own = static_cast<int32_t>(rows.offsets.size()) - 1;
  const auto is_own = [&](int32_t expert) { return expert >= 0 && expert < own; };
  std::fill(rows.offsets.begin(), rows.offsets.end(), 0);
  std::fill(rows.tokens.begin(), rows.tokens.end(), 0);
  for (const int32_t expert : rows.places) {
    if (is_own(expert - args.first_expert)) {
      ++rows.offsets[static_cast<size_t>(expert - args.first_expert) + 1];
    }
  }
  for (size_t i = 1; i < rows.offsets.size(); ++i) {
    rows.offsets[i] += rows.offsets[i - 1];
  }
  for (size_t i = 0; i < rows.places.size(); ++i) {
    const int32_t expert = rows.places[i] - args.first_expert;
    if (!is_own(expert)) {
      rows.places[i] = -1;
      continue;
    }
    const int32_t row = rows.offsets[static_cast<size_t>(expert)]++;
    rows.tokens[static_cast<size_t>(row)] = static_cast<int32_t>(i) / args.chosen;
    rows.places[i] = row;
  }
  // Each offset has moved to its expert's end, which is the next one's beginning.
  std::copy_backward(rows.offsets.begin(), rows.offsets.end() - 1, rows.offsets.end());
  rows.offsets.front() = 0;
}

using Linear = void(const LinearArgs&, Stream);

void multiply_experts(const ExpertLinearArgs& args, Linear* linear, Stream stream) {
  TESSERA_CHECK(args.offsets.size() == args.weights.size() + 1, "expert_linear: offsets");
  for (size_t expert = 0; expert < args.weights.size(); ++expert) {
    const int32_t first = args.offsets[expert];
    const int32_t count = args.offsets[expert + 1] - first;
    if (count == 0) continue;
    const MatrixView<const float> in = args.in.rows_from(first, count);
    const MatrixView<float> out = args.out.rows_from(first, count);
    int64_t col = 0;
    for (const PackedWeight& part : args.weights[expert].all()) {
      linear({.in = in,
              .weight = &part,
              .bias = {},
              .out = out.columns(col, part.rows),
              .scratch = args.scratch},
             stream);
      col += part.rows;
    }
  }
}

void add_weighted(std::span<const float> in, float weight, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] += weight * in[i];
  }
}

void add_token(const CombineArgs& args, int64_t token) {
  const std::span<float> out = args.out.row(token);
  if (!args.accumulate) {
    std::fill(out.begin(), out.end(), 0.0f);
  }
  for (int64_t choice = token * args.chosen; choice < (token + 1) * args.chosen; ++choice) {
    const int32_t place = args.places[static_cast<size_t>(choice)];
    if (place < 0) continue;
    add_weighted(args.in.row(place), args.weights[static_cast<size_t>(choice)], out);
  }
  if (args.shared.data == nullptr) return;
  const bool gated = args.shared_gates.data != nullptr;
  const float weight = gated ? 1 / (1 + std::exp(-args.shared_gates.row(token).front())) : 1.0f;
  add_weighted(args.shared.row(token), weight, out);
}

}  // namespace

namespace scalar {

void route(const RouteArgs& args, Stream stream) {
  const auto chosen = static_cast<size_t>(args.chosen);
  TESSERA_CHECK(args.chosen > 0 && args.chosen <= args.logits.cols, "route: chosen experts");
  TESSERA_CHECK(std::cmp_equal(args.rows.places.size(), args.logits.rows * args.chosen) &&
                    args.rows.weights.size() == args.rows.places.size(),
                "route: a place for each choice");
  ThreadPool::of(stream).parallel_for(
      args.logits.rows, rows_per_range(args.logits.cols * args.chosen),
      [&](int64_t begin, int64_t end, int) {
        for (int64_t token = begin; token < end; ++token) {
          const size_t at = static_cast<size_t>(token) * chosen;
          choose(args.logits.row(token), args.normalise, args.rows.places.subspan(at, chosen),
                 args.rows.weights.subspan(at, chosen));
        }
      });
  group_by_expert(args);
}

void combine(const CombineArgs& args, Stream stream) {
  TESSERA_CHECK(args.in.cols == args.out.cols, "combine: columns");
  ThreadPool::of(stream).parallel_for(args.out.rows,
                                      rows_per_range(args.out.cols * (args.chosen + 1)),
                                      [&](int64_t begin, int64_t end, int) {
                                        for (int64_t token = begin; token < end; ++token) {
                                          add_token(args, token);
                                        }
                                      });
}

void expert_linear(const ExpertLinearArgs& args, Stream stream) {
  multiply_experts(args, scalar::linear, stream);
}

}  // namespace scalar

namespace avx2 {
void expert_linear(const ExpertLinearArgs& args, Stream stream) {
  multiply_experts(args, avx2::linear, stream);
}
}  // namespace avx2

namespace avx512 {
void expert_linear(const ExpertLinearArgs& args, Stream stream) {
  multiply_experts(args, avx512::linear, stream);
}
}  // namespace avx512

namespace amx {
void expert_linear(const ExpertLinearArgs& args, Stream stream) {
  multiply_experts(args, amx::linear, stream);
}
}  // namespace amx

}  // namespace tessera
