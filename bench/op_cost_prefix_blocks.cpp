// Costs of the ops on prefix blocks.

#include <algorithm>

#include "bench/op_cost.h"
#include "bench/op_cost_units.h"

namespace tessera {

// Page ids are copied, and owner counts incremented.
OpCost op_cost(const KvShareArgs& args) {
  int64_t shared = 0;
  for (const KvShare& share : args.shares) {
    shared +=
        heads_of(args.pool.pages) * args.pool.prefix_block_pages_of(share.tier, share.short_tokens);
  }
  return {.read_bytes = 2 * shared * kId, .written_bytes = 2 * shared * kId, .flops = 0};
}

// Like kv_share, and token scores are written.
OpCost op_cost(const KvAttachArgs& args) {
  const KvPagesView& pages = args.pool.pages;
  int64_t shared = 0;
  int64_t token_scores = 0;
  for (const KvAttachment& attachment : args.attachments) {
    for (const PrefixBlock& prefix_block : attachment.prefix_blocks) {
      shared += heads_of(pages) *
                args.pool.prefix_block_pages_of(prefix_block.tier, prefix_block.short_tokens);
      token_scores +=
          pages.scores_all_tokens() ? heads_of(pages) * prefix_block.tokens_in(args.pool) : 0;
    }
  }
  return {.read_bytes = 2 * shared * kId,
          .written_bytes = 2 * shared * kId + token_scores * int64_t{sizeof(KvTokenScore)},
          .flops = 0};
}

// Pages are copied; each copy is taken from the free list, and the other page loses an owner.
OpCost op_cost(const KvOwnArgs& args) {
  const int64_t copied = heads_of(args.pool.pages) * args.row_pages();
  const int64_t bytes = copied * args.pool.pages.page_bytes;
  return {.read_bytes = bytes + 3 * copied * kId,
          .written_bytes = bytes + 3 * copied * kId,
          .flops = 0};
}

// Like released pages of kv_resize.
OpCost op_cost(const KvEvictArgs& args) {
  int64_t returned = 0;
  for (const int32_t handle : args.handles) {
    const int32_t* first = args.pool.prefix_block_table(handle, 0);
    const int64_t entries = heads_of(args.pool.pages) * args.pool.prefix_block_pages;
    returned += entries - std::count(first, first + entries, kNoPage);
  }
  return {.read_bytes = 2 * returned * kId, .written_bytes = 3 * returned * kId, .flops = 0};
}

// Reads every token in its old format and writes it in the new one; returns the pages that become
// empty.
OpCost op_cost(const KvDemoteArgs& args) {
  const KvPool& pool = args.pool;
  OpCost of_head;
  for (const PrefixBlock& prefix_block : args.prefix_blocks) {
    const int64_t returned =
        pool.prefix_block_pages_of(prefix_block.tier) - pool.prefix_block_pages_of(args.tier);
    of_head.read_bytes +=
        pool.prefix_block_tokens * kv_token_bytes(pool.pages.layouts[prefix_block.tier]) +
        2 * returned * kId;
    of_head.written_bytes +=
        pool.prefix_block_tokens * kv_token_bytes(pool.pages.layouts[args.tier]) +
        3 * returned * kId;
  }
  return {.read_bytes = heads_of(pool.pages) * of_head.read_bytes,
          .written_bytes = heads_of(pool.pages) * of_head.written_bytes,
          .flops = 0};
}

}  // namespace tessera
