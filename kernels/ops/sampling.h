#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera {

// Definition of how a token is chosen from a row of logits. Every backend picks the same token for
// the same logits and the same random number, always.
//
//   1. A logit that is not finite fails the row. If `forced` is set, that token is taken.
//   2. The row's changes are applied: forbidden tokens, bias, penalties. Then tokens that the row's
//      mask leaves out are forbidden.
//   3. The best token has the highest logit; among equal logits, the lowest id. It is taken at
//      temperature 0, or if its logit is infinite. A row fails if it is -infinity.
//   4. Logits of at least best + min_logit are kept. The `top_k` best of these remain. Then the
//      fewest best of these remain that together weigh `top_p` of their total. Tokens rank by
//      logit; among equal logits, the lower id comes first. Then the fewest most typical of these
//      remain that together weigh `typical_p` of their total. Tokens rank by
//      the distance of their surprise, -log2 of the probability, from its mean (typical_key); then
//      by id.
//   5. The kept tokens form a line in order of ids, each as wide as its weight. The drawn token
//      is the one that contains the point draw / 2^64 of the line.
//
// A weight is an integer (weight_of), so sums have no rounding and no order, and threads may share
// a row in any way. Float computations are single operations. A compiler for hardware that fuses a
// product and a sum must not fuse them here.

// Request for one row.
struct SampleRow {
  int32_t row = 0;      // index into the rows of logits
  int32_t forced = -1;  // >= 0: token id to take without a choice
  float temperature = 1;
  float top_p = 1;                                            // (0, 1]
  int32_t top_k = 0;                                          // 0: all
  float typical_p = 1;                                        // (0, 1]
  float min_logit = -std::numeric_limits<float>::infinity();  // temperature * log(min_p), <= 0
  int32_t first_change = 0;  // index in SampleArgs::changes; at most one change for each token
  int32_t changes = 0;
  int32_t mask = -1;           // >= 0: index in SampleArgs::masks; -1: all tokens are allowed
  uint64_t draw = 0;           // uniform in [0, 2^64)
  bool wants_logprob = false;  // false: SampledToken::weight is not computed
};

// A mask is a row of bits, one for each token of the vocabulary: bit t % 32 of word t / 32 is set
// if token t is allowed.
constexpr int64_t mask_words(int64_t vocab) {
  return (vocab + 31) / 32;
}
constexpr bool allows(const uint32_t* mask, int64_t token) {
  return (mask[token / 32] >> (token % 32) & 1) != 0;
}

// Change of one token's logit, applied before the choice.
struct LogitChange {
  int32_t row = 0;  // index into the rows of logits
  int32_t token = 0;
  float bias = 0;        // added first; -infinity: the token is never chosen
  float repetition = 1;  // > 0; second: logits above 0 are divided by it, others multiplied
  float penalty = 0;     // subtracted last

  constexpr float apply(float logit) const {
    const float biased = logit + bias;
    const float repeated = biased > 0 ? biased / repetition : biased * repetition;
    return repeated - penalty;
  }
};

enum class SampleStatus : int32_t {
  chosen,
  not_finite,  // `token` is the first with a logit that is not finite, `logit` its value
  none_left,   // all tokens are forbidden
};

struct SampledToken {
  int32_t token = 0;
  SampleStatus status = SampleStatus::chosen;
  // From the model's own logits, before changes and temperature; for log_probability().
  float logit = 0;      // logit of `token`
  float max_logit = 0;  // highest of all tokens
  uint64_t weight = 0;  // sum over all tokens, at temperature 1
};

inline constexpr int kWeightBits = 40;
inline constexpr uint64_t kWeightOfBest = uint64_t{1} << kWeightBits;
// Tokens for which a sum of weights fits 64 bits.
inline constexpr int64_t kMaxSampledVocab = int64_t{1} << (63 - kWeightBits);

// Constants of weight_of.
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kTooManyOctaves = 63;  // the weight is 0 at fewer octaves already
inline constexpr int kFractionBits = 25;
// (1 - 2^-f) / f at degree 5, times 2^32; signs alternate, so no difference is negative.
inline constexpr uint32_t kPowerPolynomial[] = {0xb17217df, 0x3d7f7506, 0x0e353290,
                                                0x0274f388, 0x0054a612, 0x00078809};

// Returns: how many octaves (halvings) a token is less likely than the best, times 2^25; at most
// kTooManyOctaves of them.
// Requires: logit <= best, best finite, temperature > 0.
constexpr uint32_t octaves_of(float logit, float best, float temperature) {
  const float octaves = (best - logit) / temperature * kLog2E;
  return static_cast<uint32_t>((octaves < kTooManyOctaves ? octaves : kTooManyOctaves) *
                               static_cast<float>(1 << kFractionBits));
}

// Returns: 2^-octaves * 2^40. fixed: octaves_of a token. A power of two, and 2^-f for the fraction
// f. A polynomial interpolates 2^-f at Chebyshev's points to 1.2e-8, a fifth of a float's last
// place.
constexpr uint64_t weight_of_octaves(uint32_t fixed) {
  constexpr uint32_t kPolynomial[] = {kPowerPolynomial[0], kPowerPolynomial[1],
                                      kPowerPolynomial[2], kPowerPolynomial[3],
                                      kPowerPolynomial[4], kPowerPolynomial[5]};
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

// Returns: exp((logit - best) / temperature) * 2^40. Requires: as octaves_of.
constexpr uint64_t weight_of(float logit, float best, float temperature) {
  return weight_of_octaves(octaves_of(logit, best, temperature));
}

// Typical sampling. The surprise of a token exceeds the best token's by its octaves, so the mean
// over tokens needs no logarithm: it is sum(weight * octaves) / sum(weight).

// Returns: a token's part of the first sum, times 2^-24, which for kMaxSampledVocab tokens fits 64
// bits.
constexpr uint64_t surprise_of(uint32_t octaves) {
  return (weight_of_octaves(octaves) >> 9) * octaves >> 15;
}
// Returns: mean octaves. Requires: total >= 2^24, as with the best token.
constexpr uint32_t mean_octaves(uint64_t surprise, uint64_t total) {
  return static_cast<uint32_t>(surprise / (total >> 24));
}
// Returns: an integer > 0, at most kMostTypical, that is higher for tokens nearer to the mean; of
// two that are as near, for the likelier. Tokens with the same key have the same octaves.
inline constexpr uint32_t kMostTypical = 0xfffffff0;
constexpr uint32_t typical_key(uint32_t octaves, uint32_t mean) {
  const uint32_t distance = octaves > mean ? octaves - mean : mean - octaves;
  return kMostTypical - (distance * 2 + (octaves > mean ? 1 : 0));
}
constexpr uint32_t octaves_of_key(uint32_t key, uint32_t mean) {
  const uint32_t below = kMostTypical - key;
  return below % 2 != 0 ? mean + below / 2 : mean - below / 2;
}

// Returns: an integer that orders as the logits do.
constexpr uint32_t logit_key(float logit) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // maps -0 to 0
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

// Returns: the smallest sum of weights that is at least `top_p` of `total`; in [1, total].
constexpr uint64_t weight_wanted(float top_p, uint64_t total) {
  const double share = double{top_p} * static_cast<double>(total);
  const auto whole = static_cast<uint64_t>(share);
  const uint64_t wanted = whole + (static_cast<double>(whole) < share ? 1 : 0);
  return wanted < 1 ? 1 : wanted < total ? wanted : total;
}

// Returns: draw * length / 2^64, rounded down: a point in [0, length).
constexpr uint64_t point_of(uint64_t draw, uint64_t length) {
  const uint64_t low = (draw & 0xffffffffu) * (length & 0xffffffffu);
  const uint64_t middle = (draw >> 32) * (length & 0xffffffffu) + (low >> 32);
  const uint64_t other = (draw & 0xffffffffu) * (length >> 32) + (middle & 0xffffffffu);
  return (draw >> 32) * (length >> 32) + (middle >> 32) + (other >> 32);
}

// Returns: log probability of the token by the model's own logits.
// Requires: SampleRow::wants_logprob of its row.
inline double log_probability(const SampledToken& sampled) {
  return double{sampled.logit} - sampled.max_logit -
         std::log(static_cast<double>(sampled.weight) / static_cast<double>(kWeightOfBest));
}

}  // namespace tessera
