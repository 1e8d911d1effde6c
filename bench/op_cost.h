#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

// Least work of an op, for any kernel that implements it: each operand read once, each result
// written once, nothing kept from an earlier call. Divided by a machine's peak performance, it is
// the floor that tessera-bench measures against.
//
// A flop is one addition or multiplication. An exponential, a division and a root count as one. The
// softmax of attention and of scores is left out, since its products outweigh it, and so are
// conversions of formats. Scratch and the page ids that ops look up are not counted.
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
OpCost op_cost(const LowRankArgs& args);  // matrices of each adapter that has rows
OpCost op_cost(const RopeArgs& args);     // includes the angles of each row
OpCost op_cost(const SiluMulArgs& args);
OpCost op_cost(const RouteArgs& args);
OpCost op_cost(const ExpertLinearArgs& args);  // weights of the experts that have rows
OpCost op_cost(const CombineArgs& args);
OpCost op_cost(const DeltaRuleArgs& args);  // the lengths of queries and keys are not counted
OpCost op_cost(const KvResizeArgs& args);   // page ids that change places, and their owner counts
OpCost op_cost(const KvForkArgs& args);     // likewise, and tokens that do not fill a page
// Also for kv_swap_in, given a slot that holds the tokens to be swapped in.
OpCost op_cost(const KvSnapshotArgs& args);
OpCost op_cost(const KvShareArgs& args);
OpCost op_cost(const KvAttachArgs& args);
OpCost op_cost(const KvOwnArgs& args);
OpCost op_cost(const KvEvictArgs& args);   // every page is returned to the free list
OpCost op_cost(const KvDemoteArgs& args);  // prefix blocks as they are before the op
OpCost op_cost(const KvStoreArgs& args);
// The counts of each row in each layer, and an id for each.
OpCost op_cost(const PlanAttentionArgs& args);
// Keys and values that at least one query sees, of each sequence.
OpCost op_cost(const AttentionArgs& args);
OpCost op_cost(const KvScoreArgs& args);  // keys and token scores that a counting query sees
// Requires: called after the op, because it uses its results. Every token score is read. Demoted
// tokens are read and written, with their token scores. Tokens that move into gaps are not counted:
// their number depends on the places of the gaps.
OpCost op_cost(const KvCompressArgs& args);
// Each row's logits are read once: greedy sampling compares them, otherwise each is weighed.
OpCost op_cost(const SampleArgs& args);

// Returns: bytes of a weight in its format with its scales, without padding.
int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols);

// Returns: bytes of one token of one KV head in its format.
int64_t kv_token_bytes(const KvPageLayout& layout);
int64_t kv_key_bytes(const KvPageLayout& layout);  // the key only

}  // namespace tessera
