#pragma once

#include "kernels/backend.h"

// The ops that change who has which page. Their contracts stand in kernels/backend.h. They compute
// nothing, so they serve every instruction set.

namespace tessera {

void kv_resize(const KvResizeArgs& args, Stream stream);
void kv_fork(const KvForkArgs& args, Stream stream);

}  // namespace tessera
