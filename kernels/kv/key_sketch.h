#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv/kv_page.h"
#include "kernels/matrix/view.h"

namespace tessera {

// Sketch of a page's keys: the mean key, and codes of 2 bits for each key's difference from it. A
// generated token estimates its attention on the page's tokens by the sketch, and reads the pages
// with the largest estimates. Bounds of each channel, and other vectors of a page, miss single keys
// among 63 others: docs/measurements/2026-11-27-key-sketches.md.
//
// Keys are those that attention reads, rotated (kernels/kv/rotation.h) in every format. A
// key is mean + scale * level of each channel, in the 4 levels of a normal distribution with the
// least squared error (Max, "Quantizing for Minimum Distortion", 1960, table 1).
//
// Sketches are the last bytes of a page in an arena with KvArenaShape::sketch_bytes, behind the
// layout of the page's format. Every op that copies a page copies them. kv_fork writes them anew
// for a partly filled page, because the copy may have fewer tokens.
//
//   [ mean (head_dim) | scales (1 a token) | codes of 32 tokens each (head_dim / 4, 32) | slack ]
//
// A channel of the mean is step * (byte - kSketchZero), a scale is step * byte. The lowest bits of
// the first 32 bytes of the mean are those of two bfloat16, the lowest bit of each first: the step
// of the mean, then the step of the scales. A byte has the codes of four channels of one token, the
// lowest channel in the lowest bits. A token that is not stored has the scale 0.
inline constexpr int32_t kSketchZero = 128;   // byte of a mean's channel of 0
inline constexpr int32_t kSketchTokens = 32;  // tokens whose codes lie together
inline constexpr int32_t kSketchLevels = 4;
inline constexpr float kSketchLevel[kSketchLevels] = {-1.510f, -0.4528f, 0.4528f, 1.510f};
inline constexpr float kSketchLimit = 0.9816f;  // between the levels of one sign

// Returns: true if keys of `head_dim` channels have sketches: 32 bytes of a mean, whole vectors.
constexpr bool has_sketches(int32_t head_dim) {
  return head_dim >= 32 && head_dim % 8 == 0;
}

// Byte offsets in the sketch of a page of `capacity` tokens, and its size.
struct KeySketchLayout {
  int32_t head_dim;
  int32_t capacity;

  constexpr int64_t blocks() const { return div_ceil(capacity, kSketchTokens); }
  constexpr int64_t block_bytes() const { return int64_t{head_dim} / 4 * kSketchTokens; }
  constexpr int64_t scales_offset() const { return head_dim; }
  constexpr int64_t codes_offset() const { return head_dim + blocks() * kSketchTokens; }
  constexpr int64_t bytes() const { return codes_offset() + blocks() * block_bytes(); }
};

// Returns: bytes at the end of a page that has room for sketches of `capacity` tokens.
constexpr int64_t key_sketch_bytes(int32_t head_dim, int32_t capacity) {
  return round_up(KeySketchLayout{head_dim, capacity}.bytes(), KvPageLayout::kByteMultiple);
}

// Smallest number of tiles that are read where tiles are selected: the ends of two tiers.
inline constexpr int32_t kMinReadTiles = 4;

// Returns: true if pages of that layout have sketches in the arena.
constexpr bool has_key_sketch(const KvPagesView& pages, const KvPageLayout& layout) {
  return layout.page_bytes < pages.page_bytes;
}

// Requires: has_key_sketch().
constexpr std::byte* key_sketch(const KvPageLayout& layout, std::byte* page) {
  return page + layout.page_bytes;
}
constexpr const std::byte* key_sketch(const KvPageLayout& layout, const std::byte* page) {
  return page + layout.page_bytes;
}

}  // namespace tessera
