#pragma once

#include "kernels/backend.h"

// The op of gated delta networks; kernels/ops/delta_rule.h has its contract.

namespace tessera::scalar {
void delta_rule(const DeltaRuleArgs& args, Stream stream);
}

namespace tessera::avx2 {
void delta_rule(const DeltaRuleArgs& args, Stream stream);
}

namespace tessera::avx512 {
void delta_rule(const DeltaRuleArgs& args, Stream stream);
}
