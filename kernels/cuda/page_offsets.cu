#include "kernels/kv_page.h"

namespace tessera {

// Writes the byte offset of each token's first key channel and first value, as the device computes
// them, so that a test with a GPU can compare them with the host's.
// offsets: [capacity, 2]
__global__ void page_offsets(KvPageLayout layout, int64_t* offsets) {
  const int32_t token = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (token >= layout.capacity) {
    return;
  }
  offsets[2 * token] = layout.key_offset(token, 0);
  offsets[2 * token + 1] = layout.value_offset(token);
}

}  // namespace tessera
