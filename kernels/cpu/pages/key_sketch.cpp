#include "kernels/cpu/pages/key_sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/kv/rotation.h"

namespace tessera {
namespace {

constexpr int32_t kStepBytes = 32;  // the first bytes of a mean, whose lowest bits are the steps
constexpr float kMeanRange = 126;   // leaves a byte on each side for a lowest bit that is given
constexpr float kScaleRange = 255;

// Returns: the nearest bfloat16 that is not below x. Requires: x >= 0.
float bf16_above(float x) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0xffffu) & 0xffff0000u);
}

// Returns: the multiple of `step` nearest to x, plus kSketchZero, with the lowest bit `bit`; with
// any lowest bit if `bit` is negative.
uint8_t mean_byte(float x, float step, int32_t bit) {
  const float place = step > 0 ? x / step : 0;
  int32_t byte = static_cast<int32_t>(std::lrint(place)) + kSketchZero;
  if (bit >= 0 && byte % 2 != bit) {
    byte += static_cast<float>(byte - kSketchZero) < place ? 1 : -1;
  }
  return static_cast<uint8_t>(byte);
}

// Codes of one token, and their scale.
struct TokenSketch {
  uint8_t codes[kMaxHeadDim];
  float scale;
};

// The scale makes the product of the differences with their levels that of the differences with
// themselves, so that products with queries are neither too large nor too small on average.
TokenSketch sketch_of(const float* differences, int32_t head_dim) {
  TokenSketch token;
  float squares = 0;
  for (int32_t c = 0; c < head_dim; ++c) {
    squares += differences[c] * differences[c];
  }
  const float limit = kSketchLimit * std::sqrt(squares / static_cast<float>(head_dim));
  float product = 0;
  for (int32_t c = 0; c < head_dim; ++c) {
    const float x = differences[c];
    token.codes[c] = static_cast<uint8_t>(x < -limit ? 0 : x < 0 ? 1 : x < limit ? 2 : 3);
    product += x * kSketchLevel[token.codes[c]];
  }
  token.scale = product > 0 ? squares / product : 0;
  return token;
}

// The first tokens of a page. Keys are decoded once for each pass, because a step has no memory for
// the keys of a page of any capacity.
struct Keys {
  const KvPageLayout& layout;
  const std::byte* page;
  int32_t tokens;

  void read(int32_t token, float* key) const {
    decode_key(layout, page, token, key);
    rotate(key, layout.head_dim);
  }
  void add_mean(float* mean) const {
    float key[kMaxHeadDim];
    for (int32_t token = 0; token < tokens; ++token) {
      read(token, key);
      for (int32_t c = 0; c < layout.head_dim; ++c) {
        mean[c] += key[c] / static_cast<float>(tokens);
      }
    }
  }
  TokenSketch sketch(int32_t token, const float* mean) const {
    float key[kMaxHeadDim];
    read(token, key);
    for (int32_t c = 0; c < layout.head_dim; ++c) {
      key[c] -= mean[c];
    }
    return sketch_of(key, layout.head_dim);
  }
  float largest_scale(const float* mean) const {
    float largest = 0;
    for (int32_t token = 0; token < tokens; ++token) {
      largest = std::max(largest, sketch(token, mean).scale);
    }
    return largest;
  }
};

void write_codes(const TokenSketch& of, int32_t token, int32_t head_dim, uint8_t* codes) {
  uint8_t* const column = codes + int64_t{token} / kSketchTokens * (head_dim / 4) * kSketchTokens +
                          token % kSketchTokens;
  for (int32_t c = 0; c < head_dim; ++c) {
    column[c / 4 * kSketchTokens] |= static_cast<uint8_t>(of.codes[c] << c % 4 * 2);
  }
}

}  // namespace

KeySketchSteps key_sketch_steps(const std::byte* sketch) {
  uint32_t bits = 0;
  for (int32_t first = 0; first < kStepBytes; first += 8) {
    uint64_t bytes;
    std::memcpy(&bytes, sketch + first, sizeof(bytes));
    // The product has the lowest bit of byte i in bit 56 + i.
    bits |= static_cast<uint32_t>((bytes & 0x0101010101010101) * 0x0102040810204080 >> 56) << first;
  }
  return {std::bit_cast<float>(bits << 16), std::bit_cast<float>(bits & 0xffff0000u)};
}

void write_key_sketch(const KvPageLayout& layout, int32_t tokens, std::byte* page) {
  const int32_t head_dim = layout.head_dim;
  TESSERA_CHECK(tokens > 0 && tokens <= layout.capacity && has_sketches(head_dim),
                "a key sketch of no tokens, or of channels that have none");
  const Keys keys{layout, page, tokens};
  float mean[kMaxHeadDim] = {};
  keys.add_mean(mean);
  const float largest = std::abs(*std::max_element(
      mean, mean + head_dim, [](float a, float b) { return std::abs(a) < std::abs(b); }));
  const KeySketchSteps steps{bf16_above(largest / kMeanRange),
                             bf16_above(keys.largest_scale(mean) / kScaleRange)};
  const uint32_t bits =
      std::bit_cast<uint32_t>(steps.mean) >> 16 | std::bit_cast<uint32_t>(steps.scales);
  const KeySketchLayout parts{head_dim, layout.capacity};
  auto* const sketch = reinterpret_cast<uint8_t*>(key_sketch(layout, page));
  std::fill_n(sketch, parts.bytes(), uint8_t{0});
  for (int32_t c = 0; c < head_dim; ++c) {
    sketch[c] =
        mean_byte(mean[c], steps.mean, c < kStepBytes ? static_cast<int32_t>(bits >> c & 1) : -1);
    mean[c] = steps.mean * static_cast<float>(sketch[c] - kSketchZero);  // as it is read
  }
  for (int32_t token = 0; token < tokens; ++token) {
    const TokenSketch of = keys.sketch(token, mean);
    write_codes(of, token, head_dim, sketch + parts.codes_offset());
    const float place = steps.scales > 0 ? of.scale / steps.scales : 0;
    sketch[parts.scales_offset() + token] =
        static_cast<uint8_t>(std::lrint(std::min(place, kScaleRange)));
  }
}

}  // namespace tessera
