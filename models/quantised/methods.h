#pragma once

#include "models/quantised/method.h"

namespace tessera::quantised {

// AutoAWQ, version "gemm": 4 bits with zero points.
extern const QuantisationMethod kAutoAwq;

// compressed-tensors: W4A16 and W8A16 (pack-quantized), W8A8 (int-quantized) and FP8
// (float-quantized).
extern const QuantisationMethod kCompressedTensors;

// FP8 of E4M3 with a scale for each tensor, or for blocks of 128 inputs (DeepSeek).
extern const QuantisationMethod kFp8;

// GPTQ of 4 and 8 bits, with or without act-order; checkpoint_format "gptq" and "gptq_v2".
extern const QuantisationMethod kGptq;

}  // namespace tessera::quantised
