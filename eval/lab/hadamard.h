#pragma once

#include <span>

namespace tessera::lab {

// Applies the orthonormal Walsh-Hadamard transform, which is its own inverse, to blocks of the
// largest power of two that divides the number of elements.
void hadamard(std::span<float> elements);

}  // namespace tessera::lab
