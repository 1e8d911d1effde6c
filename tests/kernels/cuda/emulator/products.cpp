// The products of tensor cores (simt.h describes their fragments).

#include <algorithm>

#include "tests/kernels/cuda/emulator/emulation.h"

namespace tessera::simt {
namespace emulation {
namespace {

// Operands of a lane for a product, and its part of the result.
template <class Sum>
struct Fragments {
  uint32_t a[4];
  uint32_t b[2];
  Sum d[4];
};

// Computes the product of a warp. Each word holds `kElements` elements of A or B along the sum;
// of_a(word, e) and of_b(word, e) return element e. Sums in Wide, and rounds once.
template <class Sum, class Wide, int kElements, class OfA, class OfB>
void multiply(Operands& operands, OfA&& of_a, OfB&& of_b) {
  constexpr int kDepth = 8 * kElements;
  Wide a[16][kDepth];
  Wide b[8][kDepth];
  for (int32_t at = 0; at < kWarp; ++at) {
    const auto lane = operands.get<Fragments<Sum>>(at);
    for (int32_t e = 0; e < kElements; ++e) {
      const int32_t k = at % 4 * kElements + e;
      for (int32_t half = 0; half < 2; ++half) {
        a[at / 4][k + half * kDepth / 2] = of_a(lane.a[2 * half], e);
        a[at / 4 + 8][k + half * kDepth / 2] = of_a(lane.a[2 * half + 1], e);
        b[at / 4][k + half * kDepth / 2] = of_b(lane.b[half], e);
      }
    }
  }
  for (int32_t at = 0; at < kWarp; ++at) {
    auto lane = operands.get<Fragments<Sum>>(at);
    for (int32_t i = 0; i < 4; ++i) {
      const Wide* row = a[at / 4 + i / 2 * 8];
      const Wide* column = b[2 * (at % 4) + i % 2];
      Wide sum = Wide{lane.d[i]};
      for (int32_t k = 0; k < kDepth; ++k) {
        sum += row[k] * column[k];
      }
      lane.d[i] = static_cast<Sum>(sum);
    }
    operands.put(at, lane);
  }
}

void multiply_f16(Operands& operands) {
  const auto element = [](uint32_t word, int32_t e) {
    return double{to_f32(f16{static_cast<uint16_t>(word >> (16 * e))})};
  };
  multiply<float, double, 2>(operands, element, element);
}

void multiply_bytes(Operands& operands) {
  multiply<int32_t, int32_t, 4>(
      operands,
      [](uint32_t word, int32_t e) { return int32_t{static_cast<uint8_t>(word >> 8 * e)}; },
      [](uint32_t word, int32_t e) { return int32_t{static_cast<int8_t>(word >> 8 * e)}; });
}

template <class Sum>
void product(const char* instruction, Sum (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
             void (*combine)(Operands&)) {
  const Fragments<Sum> own{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
  const auto result =
      exchange(instruction, &own, sizeof(own), combine).template get<Fragments<Sum>>(lane());
  std::copy_n(result.d, 4, d);
}

}  // namespace
}  // namespace emulation

void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::product("mma_f16", d, a, b, emulation::multiply_f16);
}

void mma_u8s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::product("mma_u8s8", d, a, b, emulation::multiply_bytes);
}

}  // namespace tessera::simt
