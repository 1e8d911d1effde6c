#pragma once

#include <cstdint>
#include <functional>

#include "kernels/weight.h"

namespace tessera::bench {

struct OneDnnProduct {
  WeightFormat format = WeightFormat::f32;
  int64_t tokens = 0;
  int64_t outputs = 0;
  int64_t inputs = 0;
  int64_t copies = 1;  // of the weights; calls take them in turn
};

// A call of oneDNN's matrix product, weights in the layout it chooses: f32; bf16 with f32 outputs;
// int8 as u8 times s8 to s32, without the conversion of activations that ours includes. Empty where
// it was not there at configure time or has no such product.
std::function<void()> onednn_product(const OneDnnProduct& product);

}  // namespace tessera::bench
