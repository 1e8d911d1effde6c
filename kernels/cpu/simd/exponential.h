#pragma once

namespace tessera {

// Returns: 2^f for f in [-0.51, 0.51], as 1 + f * q(f), so that 2^0 is exactly 1. The softmax
// relies on it. q interpolates (2^f - 1) / f at six Chebyshev nodes: relative error below 1e-8
// before rounding.
template <class V>
V exp2_fraction(V f) {
  V q = V::all(0x1.44138ap-13f);
  q = V::fma(q, f, V::all(0x1.5f0890p-10f));
  q = V::fma(q, f, V::all(0x1.3b2a54p-7f));
  q = V::fma(q, f, V::all(0x1.c6af6cp-5f));
  q = V::fma(q, f, V::all(0x1.ebfbe0p-3f));
  q = V::fma(q, f, V::all(0x1.62e430p-1f));
  return V::fma(q, f, V::all(1.0f));
}

// Returns: 2^x for x <= 0 with a relative error below 2^-22.5. x below -126 is clamped to -126. NaN
// stays NaN.
template <class V>
V exp2_nonpositive(V x) {
  const V bounded = V::max(V::all(-126.0f), x);
  const V whole = V::round(bounded);
  return V::scale(exp2_fraction(bounded - whole), whole);
}

// Returns: e^x with a relative error below 2^-22.5 for x in [-87, 88]. x outside is clamped to that
// range. NaN stays NaN.
template <class V>
V exponential(V x) {
  const V bounded = V::min(V::all(88.0f), V::max(V::all(-87.0f), x));
  const V whole = V::round(bounded * V::all(0x1.715476p+0f));
  const V fraction = V::fma(bounded, V::all(0x1.715476p+0f), V::zero() - whole);
  return V::scale(exp2_fraction(V::fma(bounded, V::all(0x1.4ae0cp-26f), fraction)), whole);
}

}  // namespace tessera
