#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/pages/page_ops.h"
#include "kernels/kv/kv_page.h"
#include "kernels/matrix/half.h"

namespace tessera {

// Returns: `value` as pages store it in f16, rounded to nearest even. A value that f16 cannot hold,
// NaN included, becomes the largest finite value. Pages of f16 or codes never hold infinities or
// NaN, because the weight 0 of a masked token would turn them into NaN.
f16 to_stored_f16(float value);

// fp8 is rounded twice: to f16, as the residual buffer has it, and from there to nearest even.

// The quantiser. A token's key (or value) of one KV head becomes code * scale + zero. zero is the
// lowest channel, which is an f16 already unless codes are encoded again. scale is the step that
// reaches the highest channel. code = round((x - zero) / scale), to nearest even, by a division.
// Every instruction set does exactly this arithmetic, so results agree bit for bit. Codes of 3 bits
// have another rule: kernels/kv/codebook_codes.h.
struct CodeRange {
  f16 scale;
  f16 zero;
};
CodeRange code_range(float lowest, float highest, int32_t bits);
uint32_t code_of(float x, CodeRange range, int32_t bits);

// Encodes or decodes one token of one KV head in a page of any format. Plain and slow: the oracle
// of the vector code. The first token of a tile of codes clears the rest of the tile. Keys and
// values are not rotated, whatever the format.
// Requires: 0 <= token < layout.capacity; keys, values: [layout.head_dim].
void encode_token(const KvPageLayout& layout, const float* keys, const float* values,
                  std::byte* page, int32_t token);
void decode_token(const KvPageLayout& layout, const std::byte* page, int32_t token, float* keys,
                  float* values);
// The key alone.
void decode_key(const KvPageLayout& layout, const std::byte* page, int32_t token, float* key);

// The same for a token of a tile of codes. `layout` gives the format and head_dim. For a rotated
// format, keys and values are rotated already.
CodeTile code_tile(const KvPageLayout& layout, std::byte* page, int64_t tile);
void clear_tile(const KvPageLayout& layout, const CodeTile& tile);
void encode_in_tile(const KvPageLayout& layout, const CodeTile& tile, int32_t token,
                    const float* keys, const float* values);

}  // namespace tessera
