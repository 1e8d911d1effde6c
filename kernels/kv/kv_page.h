#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv/codebook.h"
#include "kernels/kv/kv_format.h"
#include "kernels/matrix/view.h"

namespace tessera {

// KV group: tokens at positions [64 g, 64 g + 64). A query reads its own group as the residual
// buffer has it, and every earlier group in its stored format. Results therefore do not depend on
// the division of a sequence into steps.
inline constexpr int32_t kKvGroup = 64;              // tokens
inline constexpr int32_t kAttentionTile = kKvGroup;  // tokens of one step of the online softmax

// Layout of a page: a fixed number of bytes of one arena. A page belongs to ONE (layer, KV head),
// not to all of them like a block of vLLM, and holds tokens of ONE format. This struct is the only
// definition of a page's bytes, for host and device:
//
//   [ keys | key scales | key zeros | values | value scales | value zeros | slack ]
//
// Scales (f16, one for each token) are present if keys (values) are codes. Zeros are present only
// in pages of dense codes, and not for codes of a codebook. Every part consists of tiles of
// kKeyTile tokens, so a kernel needs only the address of a tile. Values of codes begin at a
// multiple of 64 bytes. Without key zeros, that takes 32 bytes in pages of an odd number of tiles;
// their slack has them.
//
// Floats. Keys are channel-major inside a tile ([head_dim][kKeyTile]): a query channel is broadcast
// against one vector of tokens. Scores are produced as whole vectors, without a horizontal sum.
// Values are token-major ([kKeyTile][head_dim]): a weight is broadcast against a vector of
// channels.
//
// Codes. The smallest part is a line of 64 bytes, one vector: 16 lanes of 4 elements. An integer
// dot product multiplies the elements with 4 broadcast bytes and adds them up into one 32-bit sum a
// lane.
//   keys:    lane = token of the tile, its 4 elements = neighbouring channels: sub-line c holds
//            channels [4c, 4c + 4) of 16 tokens; a query is broadcast 4 channels at a time.
//   values:  lane = channel, its 4 elements = neighbouring tokens: sub-line 4 * block + quad holds
//            channels [16 block, +16) of tokens [4 quad, +4); weights are broadcast 4 tokens at a
//            time.
// A sub-line has one byte an element at 8 bits. With fewer bits, f = 8 / bits sub-lines share one
// line: sub-line s is bits [(s % f) * bits, +bits) of the bytes of line s / f. Shift and mask
// therefore unpack a whole line in place. Sub-lines beyond head_dim are present, as codes 0.
//
// With 3 bits, 8 sub-lines share a unit of 3 lines. Sub-lines 2i and 2i + 1 of a unit are bits 0 to
// 2 and 3 to 5 of line i. The free bits 6 and 7 hold the last two sub-lines. Sub-line 6 + j has its
// lower two bits in line j. Its highest bit is bit 6 + j of line 2. A mask and at
// most one shift therefore unpack six of the eight. Units are whole.
//
// With 6 bits, 4 sub-lines share a unit of 3 lines. Sub-lines 0 to 2 are bits 0 to 5 of a line
// each. Bits 6 and 7 of the lines hold sub-line 3: its lowest two bits are in line 0, the next two
// in line 1, and the highest in line 2. Units are whole.
//
// Sparse. A tile's keys (values) are token-major: the kept channels of its 16 tokens in ascending
// order of channels, the same number of bytes for each token. Behind them are 16 bitmaps in whole
// words of 64 bits. Bit c of a bitmap (least significant first) is set if channel c is kept. Kept
// channels are f16, or two's complement codes of 4 bits; the lower half of a byte comes first.
// There are no bitmaps if every channel is kept.
struct KvPageLayout {
  static constexpr int32_t kKeyTile = 16;        // tokens; one AVX-512 vector of f32
  static constexpr int32_t kLineBytes = 64;      // bytes of a line of codes
  static constexpr int32_t kByteMultiple = 128;  // page_bytes is a multiple of this

  KvFormat format;
  int32_t head_dim = 0;
  int32_t capacity = 0;  // tokens in a page, a multiple of kKeyTile
  int64_t page_bytes = 0;

  // Returns: the layout with at least `min_tokens` tokens a page and the least slack.
  static constexpr KvPageLayout make(KvFormat format, int32_t head_dim, int32_t min_tokens) {
    KvPageLayout layout{format, head_dim, 0, 0};
    layout.capacity = static_cast<int32_t>(round_up(min_tokens, kKeyTile));
    layout.page_bytes = round_up(layout.used_bytes(), kByteMultiple);
    return layout;
  }

  // Returns: the layout of a page of `page_bytes` with as many tokens as fit. Capacity 0: not even
  // one tile fits.
  static constexpr KvPageLayout fit(KvFormat format, int32_t head_dim, int64_t page_bytes) {
    KvPageLayout layout{format, head_dim, 0, page_bytes};
    layout.capacity = static_cast<int32_t>(page_bytes / layout.tile_bytes()) * kKeyTile;
    return layout;
  }

  // ---- tiles
  constexpr int64_t key_tile_bytes() const {
    return format.is_sparse()  ? kKeyTile * (kept_key_bytes() + key_bitmap_bytes())
           : format.is_codes() ? lines(div_ceil(head_dim, 4), format.key_bits) * kLineBytes
                               : int64_t{kKeyTile} * head_dim * format.key_bits / 8;
  }
  constexpr int64_t value_tile_bytes() const {
    return format.is_sparse()  ? kKeyTile * (kept_value_bytes() + value_bitmap_bytes())
           : format.is_codes() ? lines(4 * div_ceil(head_dim, 16), format.value_bits) * kLineBytes
                               : int64_t{kKeyTile} * head_dim * format.value_bits / 8;
  }
  // Bytes of kKeyTile scales, or zeros.
  constexpr int64_t key_scale_tile_bytes() const { return scale_bytes(format.key_bits); }
  constexpr int64_t value_scale_tile_bytes() const { return scale_bytes(format.value_bits); }
  constexpr int64_t key_zero_tile_bytes() const { return zero_bytes(format.key_bits); }
  constexpr int64_t value_zero_tile_bytes() const { return zero_bytes(format.value_bits); }
  constexpr int64_t tile_bytes() const {  // all parts together
    return key_tile_bytes() + key_scale_tile_bytes() + value_tile_bytes() +
           value_scale_tile_bytes() + key_zero_tile_bytes() + value_zero_tile_bytes();
  }

  constexpr int64_t used_bytes() const {  // the rest is slack
    return values_offset(0) - key_zeros_offset(tiles()) + tiles() * tile_bytes();
  }

  // ---- byte offsets in a page, for the tile that begins with token `tile` * kKeyTile
  constexpr int64_t keys_offset(int64_t tile) const { return tile * key_tile_bytes(); }
  constexpr int64_t key_scales_offset(int64_t tile) const {
    return tiles() * key_tile_bytes() + tile * key_scale_tile_bytes();
  }
  constexpr int64_t key_zeros_offset(int64_t tile) const {
    return key_scales_offset(tiles()) + tile * key_zero_tile_bytes();
  }
  constexpr int64_t values_offset(int64_t tile) const {
    const int64_t keys_end = key_zeros_offset(tiles());
    return (format.is_codes() ? round_up(keys_end, kLineBytes) : keys_end) +
           tile * value_tile_bytes();
  }
  constexpr int64_t value_scales_offset(int64_t tile) const {
    return values_offset(tiles()) + tile * value_scale_tile_bytes();
  }
  constexpr int64_t value_zeros_offset(int64_t tile) const {
    return value_scales_offset(tiles()) + tile * value_zero_tile_bytes();
  }

  // ---- elements of a tile, for code that does not work by vectors

  // Floats: byte offset of an element from the start of the tile's keys (values).
  constexpr int64_t key_offset(int32_t token, int32_t channel) const {
    return (int64_t{channel} * kKeyTile + token) * (format.key_bits / 8);
  }
  constexpr int64_t value_offset(int32_t token, int32_t channel) const {
    return (int64_t{token} * head_dim + channel) * (format.value_bits / 8);
  }

  // Sparse: bytes of one token's kept channels and of its bitmap, and their byte offsets from the
  // start of the tile's keys (values).
  constexpr int64_t kept_key_bytes() const {
    return div_ceil(int64_t{format.kept_keys(head_dim)} * format.key_bits, 8);
  }
  constexpr int64_t kept_value_bytes() const {
    return div_ceil(int64_t{format.kept_values(head_dim)} * format.value_bits, 8);
  }
  constexpr int64_t key_bitmap_bytes() const { return bitmap_bytes(format.key_keep); }
  constexpr int64_t value_bitmap_bytes() const { return bitmap_bytes(format.value_keep); }
  constexpr int64_t kept_keys_offset(int32_t token) const { return token * kept_key_bytes(); }
  constexpr int64_t kept_values_offset(int32_t token) const { return token * kept_value_bytes(); }
  constexpr int64_t key_bitmap_offset(int32_t token) const {
    return kept_keys_offset(kKeyTile) + token * key_bitmap_bytes();
  }
  constexpr int64_t value_bitmap_offset(int32_t token) const {
    return kept_values_offset(kKeyTile) + token * value_bitmap_bytes();
  }

  // Codes: place of an element's bits, relative to the start of the tile's keys (values).
  struct CodePlace {
    struct Part {
      int64_t byte = 0;
      int32_t shift = 0;  // bit position within that byte
      int32_t bits = 0;   // there; 0: no part
    };

    int64_t byte;
    int32_t shift;
    int32_t bits;  // there; the others, above these, are in the parts, the lower ones first
    Part others[2] = {};

    uint32_t load(const std::byte* lines) const {
      uint32_t code = static_cast<uint32_t>(lines[byte]) >> shift & ((1u << bits) - 1);
      int32_t known = bits;
      for (const Part& part : others) {
        const uint32_t above = static_cast<uint32_t>(lines[part.byte]) >> part.shift;
        code |= (above & ((1u << part.bits) - 1)) << known;
        known += part.bits;
      }
      return code;
    }
    void store(uint32_t code, std::byte* lines) const {
      put(code, {byte, shift, bits}, lines);
      uint32_t left = code >> bits;
      for (const Part& part : others) {
        put(left, part, lines);
        left >>= part.bits;
      }
    }

   private:
    static void put(uint32_t code, Part part, std::byte* lines) {
      const uint32_t ones = (1u << part.bits) - 1;
      const uint32_t kept = static_cast<uint32_t>(lines[part.byte]) & ~(ones << part.shift);
      lines[part.byte] = static_cast<std::byte>(kept | (code & ones) << part.shift);
    }
  };
  constexpr CodePlace key_place(int32_t token, int32_t channel) const {
    return place(channel / 4, token, channel % 4, format.key_bits);
  }
  constexpr CodePlace value_place(int32_t token, int32_t channel) const {
    return place(4 * (channel / 16) + token / 4, channel % 16, token % 4, format.value_bits);
  }
  // The same for codes of 8, 4, 2 or 1 bits, which have one part: less code for a GPU.
  constexpr CodePlace::Part whole_key_place(int32_t token, int32_t channel) const {
    return whole_place(channel / 4, token, channel % 4, format.key_bits);
  }
  constexpr CodePlace::Part whole_value_place(int32_t token, int32_t channel) const {
    return whole_place(4 * (channel / 16) + token / 4, channel % 16, token % 4, format.value_bits);
  }

 private:
  constexpr int64_t tiles() const { return capacity / kKeyTile; }

  constexpr int64_t bitmap_bytes(int32_t keep) const {
    return keep == KvFormat::kKeepAll ? 0 : round_up(head_dim, 64) / 8;
  }
  constexpr int64_t scale_bytes(int32_t bits) const {
    return bits <= 8 && !format.is_floats() ? kKeyTile * 2 : 0;
  }
  constexpr int64_t zero_bytes(int32_t bits) const {
    return format.is_codes() && !has_codebook(bits) ? kKeyTile * 2 : 0;
  }
  // Number of lines that hold `sub_lines` sub-lines.
  static constexpr int64_t lines(int64_t sub_lines, int32_t bits) {
    return bits == 3   ? 3 * div_ceil(sub_lines, 8)
           : bits == 6 ? 3 * div_ceil(sub_lines, 4)
                       : div_ceil(sub_lines * bits, 8);
  }
  static constexpr CodePlace::Part whole_place(int32_t sub_line, int32_t lane, int32_t element,
                                               int32_t bits) {
    const int32_t bit = sub_line * bits;
    return {int64_t{bit / 8} * kLineBytes + 4 * lane + element, bit % 8, bits};
  }
  static constexpr CodePlace place(int32_t sub_line, int32_t lane, int32_t element, int32_t bits) {
    if (bits != 3 && bits != 6) {
      const CodePlace::Part whole = whole_place(sub_line, lane, element, bits);
      return {whole.byte, whole.shift, whole.bits};
    }
    const int64_t byte = 4 * lane + element;
    const int32_t shared = 24 / bits;  // sub-lines of a unit of three lines
    const int64_t unit = int64_t{sub_line / shared} * 3 * kLineBytes + byte;
    const int32_t i = sub_line % shared;
    if (bits == 6) {
      return i < 3 ? CodePlace{unit + i * kLineBytes, 0, 6}
                   : CodePlace{
                         unit, 6, 2, {{unit + kLineBytes, 6, 2}, {unit + 2 * kLineBytes, 6, 2}}};
    }
    return i < 6
               ? CodePlace{unit + i / 2 * kLineBytes, i % 2 * 3, 3}
               : CodePlace{unit + (i - 6) * kLineBytes, 6, 2, {{unit + 2 * kLineBytes, i, 1}, {}}};
  }
};

static_assert(KvPageLayout::make(kKvF16, 128, 16).page_bytes == 16 * 128 * 2 * 2);
static_assert(KvPageLayout::make(kKvF32, 128, 64).capacity == 64);
static_assert(KvPageLayout::make(kKvF16, 128, 16).key_offset(1, 0) == 2);
static_assert(KvPageLayout::make(kKvF16, 128, 16).key_offset(0, 1) == 32);
static_assert(KvPageLayout::make(kKvF16, 128, 16).value_offset(1, 0) == 256);
// Sizes that nest: a group of K4V2 is one page of 6,656 bytes, and one of K8V4 is two.
static_assert(KvPageLayout::fit(kKvK4V2, 128, 6656).capacity == 64);
static_assert(KvPageLayout::fit(kKvK8V4, 128, 6656).capacity == 32);
static_assert(KvPageLayout::make(kKvK4V2, 128, 64).page_bytes == 6656);
// Kept channels and one bit a channel: 36 % and 56 % of f16's bytes, 22 % with codes.
static_assert(KvPageLayout::make(kKvS70, 128, 64).tile_bytes() == 16 * 184);
static_assert(KvPageLayout::make(kKvS50, 128, 64).tile_bytes() == 16 * 288);
static_assert(KvPageLayout::make(kKvS70K4V4, 128, 64).tile_bytes() == 16 * 74);

// ---- tiers

// Precision tiers of a sequence. A tier is the part of a page-table row that is kept in one format:
// the high tier, where groups are closed, and the low tier, for demoted tokens and for attached
// demoted prefix blocks. The numbers name the tiers' formats: they are indices into the arena's
// formats (KvPagesView::layouts), because a page of an arena can hold any of its formats.
struct KvTiers {
  uint8_t high = 0;
  uint8_t low = 0;  // the same as `high` if the sequence has one tier

  friend constexpr bool operator==(KvTiers, KvTiers) = default;
};
inline constexpr int32_t kMaxKvLayouts = 16;

// Number of closed tokens in one page-table row (slot, layer, KV head), by tier. After compression
// rows of a slot may have different numbers. A row of a layer with a window counts the tokens that
// its queries have passed.
struct KvRow {
  int32_t high = 0;
  int32_t low = 0;
};

// Token score: state that a policy keeps for a stored token. Attention does not read it. 8 bytes
// for each token and KV head.
struct KvTokenScore {
  float score = 0;
  int32_t position = 0;  // position of the token in its sequence
};

// View of everything an op needs to find a sequence's keys and values. Owns nothing; the arena
// outlives it.
//
// Closed groups are in pages. A page-table row is the list of page ids of one (slot, layer, KV
// head). It has two ends: high-tier pages are added at its left end and grow
// to the right, low-tier pages are added at its right end and grow to the left. Token i of the high
// tier is token i % capacity of page row[i / capacity]. Token j of the low tier is token j %
// capacity of page row[row_pages - 1 - j / capacity]. Tokens are appended to a tier in order of
// position. Compression fills gaps with a tier's last tokens; from then on only token scores hold
// the positions.
//
// The open group (positions [64 * (n / 64), n) of a sequence of n tokens) is in the slot's residual
// buffer: floats, or codes of 8 bits. A residual buffer is one page in residual_layout for each
// (slot, layer, KV head), outside the arena. Tokens of closed groups are in the rows, or were
// dropped.
struct KvPagesView {
  std::byte* arena = nullptr;  // [pages, page_bytes], 128-byte aligned
  int64_t page_bytes = 0;
  KvPageLayout layouts[kMaxKvLayouts];  // of the served formats; page_bytes less key bounds
  const int32_t* tables = nullptr;      // [slots, layers, kv_heads, row_pages] page ids
  KvRow* rows = nullptr;                // [slots, layers, kv_heads]
  std::byte* residuals = nullptr;       // [slots, layers, kv_heads, residual_layout.page_bytes]
  // f16, f32 if the arena serves f32, or k8v8 (KvArenaShape::coded_residuals); capacity kKvGroup.
  KvPageLayout residual_layout;
  // [slots, layers, kv_heads, row_token_scores]; null: no policy needs them.
  KvTokenScore* token_scores = nullptr;
  // Entries of one row of token_scores. High token i has entry i, and low token j has entry
  // row_token_scores - 1 - j. Token o of the open group has entry high + o: its final place, so
  // closing the group moves no entries. One entry more than the longest sequence has tokens,
  // because a token that is being demoted takes two.
  int32_t row_token_scores = 0;
  // Not 0: every policy with token scores replays. A row has scores of one section alone, while it
  // is replayed: at most this number of tokens. Entry i then belongs to token i of the section. One
  // entry more holds the place of the section's first token: see section_first.
  int32_t section_scores = 0;
  // [slots, layers, kv_heads, 2, head_dim]; null: no policy needs them. Entry g % 2 belongs to
  // group g (by position). It is the sum of |q| over the group's queries and the query heads of the
  // row's KV head.
  float* query_sums = nullptr;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t row_pages = 0;  // table entries of one row
  int32_t head_dim = 0;

  constexpr int64_t row_index(int32_t slot, int32_t layer, int32_t head) const {
    return (int64_t{slot} * layers + layer) * kv_heads + head;
  }
  constexpr const int32_t* table(int64_t row) const { return tables + row * row_pages; }
  constexpr std::byte* residual(int64_t row) const {
    return residuals + row * residual_layout.page_bytes;
  }
  constexpr KvTokenScore* token_score_row(int64_t row) const {
    return token_scores + row * row_token_scores;
  }
  // Returns: true if every stored token has a score, from its first step on.
  constexpr bool scores_all_tokens() const {
    return token_scores != nullptr && section_scores == 0;
  }
  // Returns: place in the high tier of the first token of the section that was compressed last.
  // Requires: section_scores > 0.
  constexpr int32_t& section_first(int64_t row) const {
    return token_score_row(row)[section_scores].position;
  }
  constexpr float* query_sum(int64_t row, int32_t group) const {
    return query_sums + (2 * row + group % 2) * head_dim;
  }
  constexpr std::byte* page(int32_t page_id) const { return arena + int64_t{page_id} * page_bytes; }
};

}  // namespace tessera
