#pragma once

#include <cstring>

#include "kernels/cpu/sampling/row_passes.h"
#include "kernels/ops/sampling.h"

namespace tessera {

// The passes over vectors. `Lanes` computes runs of 32 tokens, which have one word of a mask. The
// last run is filled up with tokens that are not allowed.
template <class Lanes>
struct RowPassesOf {
  static Highest highest(const Tokens& tokens) {
    typename Lanes::Highest highest;
    for_each_run(tokens, [&](const float* logits, uint32_t allowed, int64_t) {
      highest.add(logits, allowed);
    });
    return highest.total();
  }

  static void keep(const Tokens& tokens, float least, uint32_t* kept) {
    for_each_run(tokens, [&](const float* logits, uint32_t allowed, int64_t run) {
      kept[run] = allowed == 0 ? 0 : allowed & Lanes::at_least(logits, least);
    });
  }

  static uint64_t weight(const WeighArgs& args) {
    typename Lanes::Weights weights(args.best, args.temperature);
    for_each_run(args.tokens, [&](const float* logits, uint32_t allowed, int64_t) {
      if (allowed != 0) {
        weights.add(logits, allowed);
      }
    });
    return weights.total();
  }

  static constexpr RowPasses all() { return {highest, keep, weight}; }

 private:
  static constexpr int64_t kRun = 32;
  // 8 KiB. The last level holds the logits of a step. The CPU's own prefetch ends at each page of 4
  // KiB, and reads them a third slower.
  static constexpr int64_t kRunsAhead = 64;

  static void prefetch(const float* run) {
    constexpr int kIntoSecondLevel = 2;
    __builtin_prefetch(run, 0, kIntoSecondLevel);
    __builtin_prefetch(run + 16, 0, kIntoSecondLevel);
  }

  // Calls body(logits, allowed, run) for each run: 32 logits and the bits of those allowed.
  template <class Body>
  static void for_each_run(const Tokens& tokens, Body&& body) {
    const auto allowed = [&](int64_t run) {
      return tokens.mask == nullptr ? ~uint32_t{0} : tokens.mask[run];
    };
    const int64_t runs = tokens.count / kRun;
    for (int64_t i = 0; i < runs; ++i) {
      if (i + kRunsAhead < runs) {
        prefetch(tokens.logits + (i + kRunsAhead) * kRun);
      }
      body(tokens.logits + i * kRun, allowed(i), i);
    }
    const int64_t left = tokens.count - runs * kRun;
    if (left > 0) {
      float logits[kRun];
      for (float& logit : logits) {
        logit = tokens.logits[runs * kRun];
      }
      std::memcpy(logits, tokens.logits + runs * kRun, static_cast<size_t>(left) * sizeof(float));
      body(logits, allowed(runs) & ((uint32_t{1} << left) - 1), runs);
    }
  }
};

}  // namespace tessera
