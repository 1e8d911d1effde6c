#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv/key_sketch.h"

// Sketches of pages (kernels/kv/key_sketch.h). Plain code for every instruction set: it runs when a
// group closes, and when blocks are demoted.
namespace tessera {

struct KeySketchSteps {
  float mean;    // of a byte of the mean
  float scales;  // of a byte of the scales
};
KeySketchSteps key_sketch_steps(const std::byte* sketch);

// Writes the sketch of the first `tokens` tokens of a page, from their keys as attention reads
// them. The same tokens give the same bytes.
// Requires: `page` is a page in that layout, with a sketch; has_sketches(layout.head_dim);
// 0 < tokens <= capacity.
void write_key_sketch(const KvPageLayout& layout, int32_t tokens, std::byte* page);

}  // namespace tessera
