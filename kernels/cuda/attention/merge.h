#pragma once

#include <bit>

#include "kernels/cuda/attention/task.h"
#include "kernels/cuda/attention/work.h"

namespace tessera::cuda {

// Merging of partial softmaxes: by the warp that computed them, or by merge_partials.

// Output of a pair, [head_dim]. `row`: of the batch.
TESSERA_DEVICE float* out_of(const AttentionArgs& args, int32_t row, int32_t head) {
  return args.out.data + row * args.out.stride + int64_t{head} * args.pages.head_dim;
}

// Partial softmax of that index in Work::partials, [partial_floats].
TESSERA_DEVICE float* partial_at(const AttentionArgs& args, const Work& work, int32_t index) {
  return work.partials + index * partial_floats(args.pages.head_dim);
}

TESSERA_DEVICE void put_log_sum(const AttentionArgs& args, int32_t row, int32_t head,
                                const PartialSums& sums) {
  constexpr float kLn2 = 0.693147180559945309f;
  if (args.log_sums.data != nullptr) {
    args.log_sums.data[row * args.log_sums.stride + head] =
        sums.maximum * kLn2 + simt::log(sums.sum);
  }
}

// Channels of a pair's values, kStep apart.
template <int32_t kStep = 1>
TESSERA_DEVICE FourChannels load_channels(const float* from) {
  if constexpr (kStep == 1) {
    return std::bit_cast<FourChannels>(simt::load_words(from));
  } else {
    return {{from[0], from[kStep], from[2 * kStep], from[3 * kStep]}};
  }
}
template <int32_t kStep = 1>
TESSERA_DEVICE void store_channels(float* to, const FourChannels& values) {
  if constexpr (kStep == 1) {
    simt::store_words(to, std::bit_cast<simt::Words>(values));
  } else {
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      to[kStep * i] = values.of[i];
    }
  }
}

// Factors of a merge: of the values so far, and of those that are added.
struct MergeFactors {
  float before;
  float next;

  TESSERA_DEVICE float sum(float so_far, float added) const {
    return simt::fma(so_far, before, added * next);
  }
  TESSERA_DEVICE FourChannels sum(const FourChannels& so_far, const FourChannels& added) const {
    FourChannels result;
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      result.of[i] = sum(so_far.of[i], added.of[i]);
    }
    return result;
  }
};

// Adds the partial softmax of the next slice or split to `sums`.
TESSERA_DEVICE MergeFactors merge(PartialSums& sums, const PartialSums& next) {
  const float larger = simt::max(sums.maximum, next.maximum);
  const MergeFactors factors{simt::exp2(sums.maximum - larger), simt::exp2(next.maximum - larger)};
  sums = {larger, factors.sum(sums.sum, next.sum)};
  return factors;
}

// Merges the splits, or slices, of the pairs of all listed rows into args.out.
void merge_partials(const AttentionArgs& args, const SequenceSpan* sequences, const Work& work,
                    int64_t rows, Stream stream);

}  // namespace tessera::cuda
