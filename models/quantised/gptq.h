#pragma once

#include "models/quantised/method.h"

namespace tessera::quantised {

// GPTQ of 4 and 8 bits, with or without act-order; checkpoint_format "gptq" and "gptq_v2".
extern const QuantisationMethod kGptq;

}  // namespace tessera::quantised
