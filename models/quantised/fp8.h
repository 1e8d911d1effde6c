#pragma once

#include "models/quantised/method.h"

namespace tessera::quantised {

// FP8 of E4M3 with a scale for each tensor, or for blocks of 128 inputs (DeepSeek).
extern const QuantisationMethod kFp8;

}  // namespace tessera::quantised
