#pragma once

#include "models/quantised/method.h"

namespace tessera::quantised {

// AutoAWQ, version "gemm": 4 bits with zero points.
extern const QuantisationMethod kAutoAwq;

}  // namespace tessera::quantised
