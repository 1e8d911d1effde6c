#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_format.h"
#include "kernels/view.h"

namespace tessera {

// A page is a fixed number of bytes of one arena. It belongs to ONE (layer, KV head) and holds
// tokens of ONE format:
//
//   [ keys: capacity x head_dim | values: capacity x head_dim | slack ]
//
// This struct is the only place that knows a page's bytes, for host and device.
//
// Keys are stored in tiles of kKeyTile tokens, channel-major inside a tile ([head_dim][kKeyTile]):
// a query channel is then broadcast against one vector of tokens, scores come out as whole vectors,
// and no horizontal sum is needed. Values are token-major ([capacity][head_dim]): a weight is
// broadcast against one vector of channels.
struct KvPageLayout {
  static constexpr int32_t kKeyTile = 16;        // tokens; one AVX-512 vector of f32
  static constexpr int32_t kByteMultiple = 128;  // page_bytes is a multiple of this

  KvFormat format;
  int32_t head_dim = 0;
  int32_t capacity = 0;  // tokens in a page, a multiple of kKeyTile
  int64_t page_bytes = 0;

  // The layout with at least `min_tokens` tokens a page and the least slack.
  static constexpr KvPageLayout make(KvFormat format, int32_t head_dim, int32_t min_tokens) {
    KvPageLayout layout{format, head_dim, 0, 0};
    layout.capacity = static_cast<int32_t>(round_up(min_tokens, kKeyTile));
    layout.page_bytes = round_up(layout.value_offset(layout.capacity), kByteMultiple);
    return layout;
  }

  constexpr int64_t key_bytes() const { return format.key_bits / 8; }      // of one element
  constexpr int64_t value_bytes() const { return format.value_bits / 8; }  // of one element

  // Byte offset of key channel `channel` of token `token`; its tile's other tokens follow it.
  constexpr int64_t key_offset(int32_t token, int32_t channel) const {
    const int64_t tile = token / kKeyTile;
    const int64_t lane = token % kKeyTile;
    return ((tile * head_dim + channel) * kKeyTile + lane) * key_bytes();
  }

  // Byte offset of the first value channel of token `token`; the other channels follow it.
  constexpr int64_t value_offset(int32_t token) const {
    return capacity * head_dim * key_bytes() + int64_t{token} * head_dim * value_bytes();
  }
};

static_assert(KvPageLayout::make(kKvF16, 128, 16).page_bytes == 16 * 128 * 2 * 2);
static_assert(KvPageLayout::make(kKvF32, 128, 64).capacity == 64);
static_assert(KvPageLayout::make(kKvF16, 128, 16).key_offset(1, 0) == 2);
static_assert(KvPageLayout::make(kKvF16, 128, 16).key_offset(0, 1) == 32);
static_assert(KvPageLayout::make(kKvF16, 128, 16).value_offset(1) == 16 * 128 * 2 + 256);

// Everything an op needs to find a token's keys and values: the arena and the page tables.
// Page ids live here, on the device; the host above speaks of slots and token counts only.
struct KvPagesView {
  std::byte* arena = nullptr;       // [pages, layout.page_bytes], 128-byte aligned
  const int32_t* tables = nullptr;  // [slots, layers, kv_heads, row_pages] page ids
  KvPageLayout layout;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t row_pages = 0;  // entries of one row: pages of a sequence of the longest context

  const int32_t* row(int32_t slot, int32_t layer, int32_t head) const {
    const int64_t index = (int64_t{slot} * layers + layer) * kv_heads + head;
    return tables + index * row_pages;
  }
  std::byte* page(int32_t page_id) const { return arena + int64_t{page_id} * layout.page_bytes; }
};

}  // namespace tessera
