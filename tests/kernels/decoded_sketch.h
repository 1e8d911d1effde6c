#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/pages/key_sketch.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/kv/rotation.h"

namespace tessera {

// The numbers of a sketch, read as kernels/kv/key_sketch.h states.
class DecodedSketch {
 public:
  DecodedSketch(const KvPageLayout& layout, const std::byte* page)
      : parts_{layout.head_dim, layout.capacity},
        bytes_(reinterpret_cast<const uint8_t*>(key_sketch(layout, page))),
        steps_(key_sketch_steps(key_sketch(layout, page))) {}

  double mean(int32_t channel) const { return double{steps_.mean} * (bytes_[channel] - 128); }
  double scale(int32_t token) const {
    return double{steps_.scales} * bytes_[parts_.scales_offset() + token];
  }
  double difference(int32_t token, int32_t channel) const {
    const uint8_t four = bytes_[parts_.codes_offset() + token / 32 * parts_.block_bytes() +
                                channel / 4 * 32 + token % 32];
    return scale(token) * kSketchLevel[four >> channel % 4 * 2 & 3];
  }
  double channel(int32_t token, int32_t channel) const {
    return mean(channel) + difference(token, channel);
  }

 private:
  KeySketchLayout parts_;
  const uint8_t* bytes_;
  KeySketchSteps steps_;
};

// Checks the sketch of the first `tokens` tokens of a page. The squared errors of 4 levels are an
// eighth of a normal distribution's squares; channels of small heads are further from one.
inline void expect_sketch_of(const KvPageLayout& layout, const std::byte* page, int32_t tokens) {
  const DecodedSketch sketch(layout, page);
  double errors = 0;
  double squares = 0;
  std::vector<float> key(static_cast<size_t>(layout.head_dim));
  for (int32_t token = 0; token < layout.capacity; ++token) {
    if (token >= tokens) {
      ASSERT_EQ(sketch.scale(token), 0);
      continue;
    }
    decode_key(layout, page, token, key.data());
    rotate(key.data(), layout.head_dim);
    for (int32_t c = 0; c < layout.head_dim; ++c) {
      const double error = double{key[static_cast<size_t>(c)]} - sketch.channel(token, c);
      const double difference = double{key[static_cast<size_t>(c)]} - sketch.mean(c);
      errors += error * error;
      squares += difference * difference;
    }
  }
  ASSERT_GT(squares, 0);
  ASSERT_LT(errors, 0.2 * squares);
}

}  // namespace tessera
