#pragma once

#include "models/quantised/method.h"

namespace tessera::quantised {

// compressed-tensors: W4A16 and W8A16 (pack-quantized), W8A8 (int-quantized) and FP8
// (float-quantized).
extern const QuantisationMethod kCompressedTensors;

}  // namespace tessera::quantised
