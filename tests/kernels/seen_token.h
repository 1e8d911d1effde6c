#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kv/rotation.h"
#include "tests/kernels/kv_rows.h"

namespace tessera {

// Reference: the stored numbers (codes decoded), or the original numbers.
enum class SeenAgainst { stored, originals };

// One token that a query sees, as stored or as the original.
struct SeenToken {
  std::vector<double> key;
  std::vector<double> value;
  double key_step = 0;  // for codes, else 0
  double value_step = 0;
  // Rotated formats: rows of codes, and lowest numbers, are of rotated channels. Else 0.
  double rotated_keys = 0;    // sum of |rotated key - zero| and |zero|
  double rotated_values = 0;  // bound of |value - zero| + |zero|, for each channel
  double key_error = 0;       // of each channel, against the stored number
  double value_error = 0;
  bool key_halves = false;  // multiplied as f16
  double value_unit = 0;    // scale of values multiplied as f16, 1 without codes; else 0
};

// Error of a channel of codes: half a step of rounding, and the rounding of (2^bits - 1) scales
// to f16, 2^-11 each, for the top code, which is clamped.
inline double coding_error(double step, int32_t bits) {
  return step * (0.5 + ((1 << bits) - 1) * 0x1p-11);
}

inline SeenToken seen_pruned(KvFormat format, std::span<const float> keys,
                             std::span<const float> values) {
  const auto head_dim = static_cast<int32_t>(keys.size());
  const PrunedToken key = prune(keys, format.kept_keys(head_dim), format.key_bits);
  const PrunedToken value = prune(values, format.kept_values(head_dim), format.value_bits);
  SeenToken seen{{key.channels.begin(), key.channels.end()},
                 {value.channels.begin(), value.channels.end()}};
  seen.key_step = format.key_bits <= 8 ? double{key.scale} : 0;
  seen.key_halves = format.key_bits == 16;
  seen.value_unit = format.value_bits <= 8 ? double{value.scale} : 1;
  return seen;
}

// The Walsh-Hadamard transform of each block in double precision, by Sylvester's construction.
inline std::vector<double> rotated_back(const CodedToken& token) {
  const auto block = static_cast<size_t>(rotation_block(static_cast<int32_t>(token.codes.size())));
  std::vector<double> numbers(token.codes.size());
  for (size_t c = 0; c < numbers.size(); ++c) {
    numbers[c] = token.decoded(c) / std::sqrt(static_cast<double>(block));
  }
  for (size_t half = 1; half < block; half *= 2) {
    for (size_t c = 0; c < numbers.size(); ++c) {
      if ((c & half) == 0) {
        const double low = numbers[c];
        numbers[c] = low + numbers[c + half];
        numbers[c + half] = low - numbers[c + half];
      }
    }
  }
  return numbers;
}

inline SeenToken seen_rotated(KvFormat format, const CodedToken& key, const CodedToken& value,
                              SeenAgainst against, SeenToken seen) {
  const double growth =
      std::sqrt(static_cast<double>(rotation_block(static_cast<int32_t>(key.codes.size()))));
  for (size_t c = 0; c < key.codes.size(); ++c) {
    seen.rotated_keys += double{key.scale} * key.codes[c] + std::abs(double{key.zero});
    seen.rotated_values =
        std::max(seen.rotated_values,
                 growth * (double{value.scale} * value.codes[c] + std::abs(double{value.zero})));
  }
  if (against == SeenAgainst::originals) {
    seen.key_error = growth * coding_error(seen.key_step, format.key_bits);
    seen.value_error = growth * coding_error(seen.value_step, format.value_bits);
  } else {
    seen.key = rotated_back(key);
    seen.value = rotated_back(value);
  }
  return seen;
}

inline SeenToken seen_as(KvFormat format, std::span<const float> keys,
                         std::span<const float> values, SeenAgainst against) {
  SeenToken seen{{keys.begin(), keys.end()}, {values.begin(), values.end()}};
  if (format.is_floats()) {
    return seen;
  }
  if (format.is_sparse()) {
    return seen_pruned(format, keys, values);
  }
  const CodedToken key = encode(keys, format.key_bits, format.rotated);
  const CodedToken value = encode(values, format.value_bits, format.rotated);
  seen.key_step = double{key.scale};
  seen.value_step = double{value.scale};
  if (format.rotated) {
    return seen_rotated(format, key, value, against, std::move(seen));
  }
  if (against == SeenAgainst::originals) {
    seen.key_error = coding_error(seen.key_step, format.key_bits);
    seen.value_error = coding_error(seen.value_step, format.value_bits);
    return seen;
  }
  for (size_t c = 0; c < seen.key.size(); ++c) {
    seen.key[c] = key.decoded(c);
    seen.value[c] = value.decoded(c);
  }
  return seen;
}

}  // namespace tessera
