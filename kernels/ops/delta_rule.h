#pragma once

#include <cstdint>
#include <span>

#include "kernels/device/stream.h"
#include "kernels/matrix/view.h"

namespace tessera {

// The recurrence of a gated delta network (Gated Delta Networks, arXiv 2412.06464, section 3.1).
// Such a layer has no keys and values of old tokens. Each of its value heads has one state, a
// matrix of [key_dim, value_dim] in f32, whose size does not depend on the number of tokens.

// Tokens of one sequence in a step: rows [first_row, first_row + count).
struct StateSpan {
  int32_t slot = 0;  // row of `states`
  int32_t first_row = 0;
  int32_t count = 0;
};

// Takes the tokens of each sequence in order. For each token, each value head does:
//   state *= exp(decay)
//   state += outer(key, rate * (value - key * state))
//   out = query * state / sqrt(key_dim)
// Value heads [i * n, (i + 1) * n) have key head i, with n = value heads / key heads. A result
// depends on the tokens of its sequence alone. It has the same bits for any division into steps.
struct DeltaRuleArgs {
  MatrixView<const float> queries;       // [tokens, key heads * key_dim]
  MatrixView<const float> keys;          // [tokens, key heads * key_dim]
  MatrixView<const float> values;        // [tokens, value_heads * value_dim]
  MatrixView<const float> decays;        // [tokens, value_heads], at most 0
  MatrixView<const float> rates;         // [tokens, value_heads], from 0 to 1
  std::span<const StateSpan> sequences;  // of distinct slots
  MatrixView<float> states;  // [slots, value_heads * key_dim * value_dim]; zero at a text's begin
  int32_t value_heads = 0;
  int32_t key_dim = 0;
  // Divides each query and key by its length first: x / sqrt(sum of squares + 1e-6).
  bool normalise = false;
  MatrixView<float> out;  // [tokens, value_heads * value_dim]
};

}  // namespace tessera
