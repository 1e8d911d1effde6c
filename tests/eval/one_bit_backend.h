#pragma once

#include "kernels/backend.h"

namespace tessera {

// This machine's best backend with values that keep nothing but their signs: each becomes plus or
// minus the mean magnitude of its token and head. What an evaluation has to notice.
const Backend& one_bit_backend();

}  // namespace tessera
