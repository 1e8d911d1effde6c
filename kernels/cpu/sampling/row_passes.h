#pragma once

#include <cstdint>

namespace tessera {

// The highest logits of a row.
struct Highest {
  float of_all = 0;
  float of_allowed = 0;  // -infinity if no token is allowed
  bool finite = true;    // all logits are; otherwise the highest are undefined
};

// Consecutive tokens of a row. Pointers are not owned.
struct Tokens {
  const float* logits;   // [count]
  int64_t count;         // > 0
  const uint32_t* mask;  // [mask_words(count)], ops/sampling.h; null: all tokens are allowed
};

// Arguments of a sum of weights (weight_of, kernels/ops/sampling.h).
// Requires: logits of allowed tokens <= best, best finite, temperature > 0.
struct WeighArgs {
  Tokens tokens;
  float best;
  float temperature;
};

// Passes over tokens of a row, in order of ids. One set for each instruction set, with the same
// results in all.
struct RowPasses {
  Highest (*highest)(const Tokens& tokens);
  // Sets the bit of each allowed token whose logit is at least `least`; clears others. kept:
  // [mask_words(count)], may be the mask.
  void (*keep)(const Tokens& tokens, float least, uint32_t* kept);
  // Returns: sum of the weights of allowed tokens.
  uint64_t (*weight)(const WeighArgs& args);
};

namespace scalar {
extern const RowPasses kRowPasses;
}
namespace avx2 {
extern const RowPasses kRowPasses;
}
namespace avx512 {
extern const RowPasses kRowPasses;
}

}  // namespace tessera
