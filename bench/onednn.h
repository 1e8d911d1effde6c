#pragma once

#include <cstdint>
#include <functional>

#include "kernels/matrix/weight.h"

namespace tessera::bench {

struct OneDnnProduct {
  WeightFormat format = WeightFormat::f32;
  int64_t tokens = 0;
  int64_t outputs = 0;
  int64_t inputs = 0;
  int64_t copies = 1;  // copies of the weights; calls use them in turn
};

// Returns: a call of oneDNN's matrix product, with weights in the layout that oneDNN chooses. The
// types are f32; bf16 with f32 outputs; int8 as u8 times s8 to s32. The int8 call excludes the
// conversion of activations, which Tessera's op includes. Returns an empty function if oneDNN was
// not found at configure time or has no such product.
std::function<void()> onednn_product(const OneDnnProduct& product);

}  // namespace tessera::bench
