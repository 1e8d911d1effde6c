#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

// What an op must move and compute at least, whatever kernel does it: each operand read once, each
// result written once, nothing kept from an earlier call. Divided by what a machine can do, this is
// the floor that tessera-bench measures against.
//
// A flop is one addition or multiplication; an exponential, a division and a root count as one, and
// the softmax of attention and of scores is left out, since their products outweigh it, and so are
// conversions of formats. Scratch is not counted, and neither are the page ids that ops look up.
struct OpCost {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  int64_t flops = 0;

  int64_t bytes() const { return read_bytes + written_bytes; }
  friend OpCost operator+(const OpCost& a, const OpCost& b) {
    return {a.read_bytes + b.read_bytes, a.written_bytes + b.written_bytes, a.flops + b.flops};
  }
  friend bool operator==(const OpCost&, const OpCost&) = default;
};

OpCost op_cost(const EmbedArgs& args);  // repeated tokens are counted each time
OpCost op_cost(const RmsNormArgs& args);
OpCost op_cost(const LinearArgs& args);
OpCost op_cost(const RopeArgs& args);  // with the angles of each row
OpCost op_cost(const SiluMulArgs& args);
OpCost op_cost(const KvResizeArgs& args);  // the page ids that change places, and their owners
OpCost op_cost(const KvForkArgs& args);    // likewise, and the tokens that do not fill a page
OpCost op_cost(
    const KvSnapshotArgs& args);  // for kv_swap_in too, of a slot that holds what is to be loaded
OpCost op_cost(const KvShareArgs& args);
OpCost op_cost(const KvAttachArgs& args);
OpCost op_cost(const KvDropArgs& args);    // every page goes back
OpCost op_cost(const KvDemoteArgs& args);  // of units as they are before
OpCost op_cost(const KvStoreArgs& args);
OpCost op_cost(
    const AttentionArgs& args);           // keys and values that some query sees, of each sequence
OpCost op_cost(const KvScoreArgs& args);  // keys and marks that some counting query sees
// After the op: by what its results say of it. Every mark is read, tokens that are demoted are read
// and written, with their marks. How many others move into gaps depends on where these are: not
// counted.
OpCost op_cost(const KvCompressArgs& args);
// Each row's logits read once: greedy compares them, else each is weighed.
OpCost op_cost(const SampleArgs& args);

// What a weight needs in its format with its scales, padding left out.
int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols);

// What one token of one KV head needs in its format.
int64_t kv_token_bytes(const KvPageLayout& layout);
int64_t kv_key_bytes(const KvPageLayout& layout);  // its key alone

}  // namespace tessera
