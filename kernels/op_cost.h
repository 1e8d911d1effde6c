#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

// What an op must move and compute at least, whatever kernel does it: each operand read once, each
// result written once, nothing kept from an earlier call. Divided by what a machine can do, this is
// the floor that tessera-bench measures against.
//
// A flop is one addition or multiplication; an exponential, a division and a root count as one, and
// the softmax of attention is left out, since its products outweigh it. Scratch is not counted, and
// neither are the page ids that store and attention look up.
struct OpCost {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  int64_t flops = 0;

  int64_t bytes() const { return read_bytes + written_bytes; }
  friend bool operator==(const OpCost&, const OpCost&) = default;
};

OpCost op_cost(const EmbedArgs& args);  // repeated tokens are counted each time
OpCost op_cost(const RmsNormArgs& args);
OpCost op_cost(const LinearArgs& args);
OpCost op_cost(const RopeArgs& args);  // with the angles of each row
OpCost op_cost(const SiluMulArgs& args);
OpCost op_cost(const KvResizeArgs& args);  // the page ids that change places, and their owners
OpCost op_cost(const KvForkArgs& args);    // likewise, and the tokens that do not fill a page
OpCost op_cost(const KvStoreArgs& args);
OpCost op_cost(const AttentionArgs& args);  // keys and values that some query sees

// What a weight needs in its format with its scales, padding left out.
int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols);

// What one token of one KV head needs in its format.
int64_t kv_token_bytes(const KvPageLayout& layout);

}  // namespace tessera
