#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv/key_bounds.h"

// Key bounds of a page (kernels/kv/key_bounds.h). Plain code for every instruction set: it runs
// when a group closes, and when blocks are demoted.
namespace tessera {

// A bound is zero + step * code.
struct BoundScale {
  float zero;
  float step;
};
BoundScale bound_scale(const std::byte* bounds);

// Writes bounds of the first `tokens` tokens of a page, from their keys as attention reads them.
// The same tokens give the same bytes.
// Requires: `page` is a page of `pages` in that layout, with key bounds; 0 < tokens <= capacity.
void write_key_bounds(const KvPagesView& pages, const KvPageLayout& layout, int32_t tokens,
                      std::byte* page);

}  // namespace tessera
