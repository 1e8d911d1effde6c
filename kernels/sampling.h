#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera {

// How a token is chosen from a row of logits: one definition, so that every backend picks the same
// token for the same logits and the same random number, always.
//
//   1. A logit that is not finite fails the row. With `forced` that token is taken.
//   2. The row's changes: forbidden tokens, bias, penalties.
//   3. The best token: the highest logit, of equals the lowest id. It is taken at temperature 0,
//   and
//      where its logit is infinite; a row fails where it is -infinity.
//   4. Kept are logits that reach the best one's plus min_logit; of these the `top_k` best; of
//   these
//      the fewest best that together weigh `top_p` of them. Tokens rank by logit, of equals the
//      lower id before the higher.
//   5. Kept tokens in order of ids, each as wide as it weighs, make a line; the token is drawn in
//      which the point draw / 2^64 of the line lies.
//
// A weight is an integer (weight_of), so sums have no rounding and no order, and threads may share
// a row in any way. What is computed in floats are single operations: who compiles this for
// hardware that fuses a product and a sum forbids that.

// What is asked of one row.
struct SampleRow {
  int32_t row = 0;      // of the logits
  int32_t forced = -1;  // taken instead of a choice, where it is a token
  float temperature = 1;
  float top_p = 1;                                            // (0, 1]
  int32_t top_k = 0;                                          // 0: all
  float min_logit = -std::numeric_limits<float>::infinity();  // temperature * log(min_p), <= 0
  int32_t first_change = 0;  // of SampleArgs::changes, where its own stand, of each token one
  int32_t changes = 0;
  uint64_t draw = 0;           // uniform in [0, 2^64)
  bool wants_logprob = false;  // or else SampledToken::weight is not computed
};

// What becomes of a token's logit before anything is chosen.
struct LogitChange {
  int32_t row = 0;  // of the logits
  int32_t token = 0;
  float bias = 0;        // added first; -infinity: the token is never chosen
  float repetition = 1;  // > 0; then logits above 0 are divided by it, others multiplied
  float penalty = 0;     // subtracted last

  constexpr float apply(float logit) const {
    const float biased = logit + bias;
    const float repeated = biased > 0 ? biased / repetition : biased * repetition;
    return repeated - penalty;
  }
};

enum class SampleStatus : int32_t {
  chosen,
  not_finite,  // `token` is the first whose logit is not finite, `logit` what it is
  none_left,   // all tokens are forbidden
};

struct SampledToken {
  int32_t token = 0;
  SampleStatus status = SampleStatus::chosen;
  // By the model's own logits, before changes and temperature, for log_probability().
  float logit = 0;      // of the token
  float max_logit = 0;  // of all
  uint64_t weight = 0;  // of all, at temperature 1
};

inline constexpr int kWeightBits = 40;
inline constexpr uint64_t kWeightOfBest = uint64_t{1} << kWeightBits;
// A sum of weights fits 64 bits.
inline constexpr int64_t kMaxSampledVocab = int64_t{1} << (63 - kWeightBits);

// The numbers of weight_of.
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kTooManyOctaves = 63;  // the weight is 0 before
inline constexpr int kFractionBits = 25;
// (1 - 2^-f) / f at degree 5, times 2^32; signs alternate, so no difference is negative.
inline constexpr uint32_t kPowerPolynomial[] = {0xb17217df, 0x3d7f7506, 0x0e353290,
                                                0x0274f388, 0x0054a612, 0x00078809};

// exp((logit - best) / temperature) * 2^40. The quotient is of floats; the rest is fixed-point: a
// power of two, and 2^-f for the fraction f by a polynomial that interpolates it at Chebyshev's
// points to 1.2e-8, a fifth of a float's last place.
// Requires: logit <= best, best finite, temperature > 0.
constexpr uint64_t weight_of(float logit, float best, float temperature) {
  constexpr uint32_t kPolynomial[] = {kPowerPolynomial[0], kPowerPolynomial[1],
                                      kPowerPolynomial[2], kPowerPolynomial[3],
                                      kPowerPolynomial[4], kPowerPolynomial[5]};
  const float octaves = (best - logit) / temperature * kLog2E;
  const auto fixed = static_cast<uint32_t>((octaves < kTooManyOctaves ? octaves : kTooManyOctaves) *
                                           static_cast<float>(1 << kFractionBits));
  const uint32_t fraction = fixed << (32 - kFractionBits);
  const auto times_fraction = [fraction](uint32_t x) {
    return static_cast<uint32_t>(uint64_t{fraction} * x >> 32);
  };
  uint32_t sum = kPolynomial[5];
  for (int i = 4; i >= 0; --i) {
    sum = kPolynomial[i] - times_fraction(sum);
  }
  const uint32_t power = (uint32_t{1} << 31) - (times_fraction(sum) >> 1);  // 2^-f * 2^31
  return uint64_t{power} << (kWeightBits - 31) >> (fixed >> kFractionBits);
}

// Orders as logits do.
constexpr uint32_t logit_key(float logit) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // there is one zero
  return bits >> 31 != 0 ? ~bits : bits | uint32_t{1} << 31;
}

constexpr float logit_of(uint32_t key) {
  return std::bit_cast<float>(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

constexpr bool is_finite(float logit) {
  return (std::bit_cast<uint32_t>(logit) & 0x7f800000u) != 0x7f800000u;
}

constexpr bool selects(const SampleRow& row) {
  return row.top_k > 0 || row.top_p < 1 || row.min_logit > -std::numeric_limits<float>::infinity();
}

// The least sum of weights that is `top_p` of `total`.
constexpr uint64_t weight_wanted(float top_p, uint64_t total) {
  const double share = double{top_p} * static_cast<double>(total);
  const auto whole = static_cast<uint64_t>(share);
  const uint64_t wanted = whole + (static_cast<double>(whole) < share ? 1 : 0);
  return wanted < 1 ? 1 : wanted < total ? wanted : total;
}

// The point of a line of that length.
constexpr uint64_t point_of(uint64_t draw, uint64_t length) {
  const uint64_t low = (draw & 0xffffffffu) * (length & 0xffffffffu);
  const uint64_t middle = (draw >> 32) * (length & 0xffffffffu) + (low >> 32);
  const uint64_t other = (draw & 0xffffffffu) * (length >> 32) + (middle & 0xffffffffu);
  return (draw >> 32) * (length >> 32) + (middle >> 32) + (other >> 32);
}

// Of the token, by the model's own logits. For rows that wanted it.
inline double log_probability(const SampledToken& sampled) {
  return double{sampled.logit} - sampled.max_logit -
         std::log(static_cast<double>(sampled.weight) / static_cast<double>(kWeightOfBest));
}

}  // namespace tessera
