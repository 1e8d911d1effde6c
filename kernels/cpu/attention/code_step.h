#pragma once

namespace tessera {

// How attention multiplies codes: queries, and a tile's weights times the values' scales, become
// integers n of 16 bits, x ~ n * step, so that a dot product with codes is an exact integer sum.
// Where the hardware multiplies bytes, n = 256 * high + low with signed bytes: hence the range,
// which leaves `high` within [-127, 127]. A sum over 256 codes of 8 bits stays below 2^31.
inline constexpr float kCodeRange = 127 * 256;

// The largest magnitude m of the numbers becomes kCodeRange: step = m / kCodeRange, and n is x
// times kCodeRange / m, rounded. A smaller m counts as this, so that there is an inverse.
inline constexpr float kMinLargest = 1e-30f;

}  // namespace tessera
