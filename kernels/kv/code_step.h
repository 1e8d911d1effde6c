#pragma once

namespace tessera {

// Arithmetic of attention on codes. Queries, and a tile's weights times the value scales, become
// 16-bit integers n with x ~ n * step. A dot product with codes is then an exact integer sum. If
// the hardware multiplies bytes, n = 256 * high + low with signed bytes. The range therefore keeps
// `high` within [-127, 127]. A sum over 256 codes of 8 bits stays below 2^31.
inline constexpr float kCodeRange = 127 * 256;

// The largest magnitude m of the numbers maps to kCodeRange: step = m / kCodeRange, and n is x
// times kCodeRange / m, rounded. kMinLargest is the lower bound of m, so that m has an inverse.
inline constexpr float kMinLargest = 1e-30f;

}  // namespace tessera
