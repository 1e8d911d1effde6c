#pragma once

#include <gtest/gtest.h>

#include "tests/kernels/attention_sequences.h"

namespace tessera {

// Compares every `stride`-th row, the last one included, with double precision. The bounds are
// those of arithmetic on the stored bytes, or of the format's steps against the originals.
inline void expect_near(const AttentionSequences& sequences, const Attended& attended,
                        AttentionSequences::Against against, int32_t stride,
                        AttentionSequences::Sparse sparse = AttentionSequences::Sparse::f32) {
  const AttentionShape& shape = sequences.shape();
  for (size_t s = 0; s < attended.out.size(); ++s) {
    const int32_t length = sequences.lengths()[s];
    for (int32_t row = (length - 1) % stride; row < length; row += stride) {
      for (int32_t head = 0; head < shape.query_heads(); ++head) {
        SCOPED_TRACE(testing::Message()
                     << testing::PrintToString(shape) << " sequence " << s << " of length "
                     << length << " row " << row << " head " << head);
        const auto expected = sequences.expected(s, row, head, against, sparse);
        const int64_t at = int64_t{row} * shape.query_heads() + head;
        if (against == AttentionSequences::Against::stored) {
          ASSERT_NEAR(double{attended.log_sums[s][static_cast<size_t>(at)]}, expected.log_sum,
                      expected.log_sum_bound);
        }
        for (int32_t c = 0; c < shape.head_dim; ++c) {
          const size_t i = static_cast<size_t>(c);
          ASSERT_NEAR(double{attended.out[s][static_cast<size_t>(at * shape.head_dim + c)]},
                      expected.values[i], expected.bounds[i])
              << "channel " << c;
        }
      }
    }
  }
}

}  // namespace tessera
