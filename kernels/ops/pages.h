#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kv/kv_compression.h"
#include "kernels/kv/kv_pool.h"

namespace tessera {

// Ops on the pages of the KV cache: their owners, copies and formats. No op here reads the step's
// tokens.

// Allocates and releases the pages of page-table rows (one for each layer and KV head of a slot).
// First, every row of the `released` slots is emptied, and rows of layers with a window give back
// the pages that `passed` slots have passed. Then every row of the `grown` slots gets the pages it
// lacks, so one call can reuse released pages.
// One pass over the circular free list serves all rows of all these slots. A prefix sum over the
// rows' page counts gives each row its place in the list. A page returns to
// the free list when its last owner releases it.
// Requires: enough free pages after the releases; room in each grown row between its high pages,
// which grow from the left end, and its low pages, which grow from the right end.
struct KvResizeArgs {
  KvPool pool;
  std::span<const int32_t> released;  // slots
  std::span<const KvGrowth> grown;    // at most one for each slot
  // Output: pages taken by each entry of `grown`. Host memory, not owned. It is written by the time
  // the host next waits for the stream, and must stay valid until then. Empty: not reported.
  std::span<int32_t> taken = {};
  std::span<const KvPassed> passed = {};  // at most one for each slot
};

// Shares the pages of one prompt between sequences. A full page gets one more owner. A partly
// filled page, which both sequences would write, is copied at once, and so is the residual buffer.
// In layers with a window all pages are copied, because each sequence passes them in its own time.
// Requires: targets without tokens; free pages for the copies, at most one for each tier of a row
// without a window; the source has not passed a page that a target reads. A source has two tiers if
// it began with demoted prefix blocks.
struct KvForkArgs {
  KvPool pool;
  std::span<const KvFork> forks;
};

// kv_swap_out copies pages, residual buffers, token scores and query sums of a slot to host memory.
// The slot keeps them; the caller releases it. kv_swap_in copies them back into a slot without
// tokens, and takes as many pages as the rows need. Tokens return to the same places in their rows,
// so results computed from them have the same bits.
// Requires: kv_snapshot_bytes() bytes of host memory; for kv_swap_in, enough free pages.
struct KvSnapshotArgs {
  KvPool pool;
  KvSnapshot snapshot;         // names the slot
  std::span<std::byte> bytes;  // the copy; kv_swap_in only reads it
};

// Makes prefix blocks from pages of slots (SharedPrefixes::insert uses it). Each page gets one more
// owner, and so stays in use when the slot is released.
// Requires: full pages, whose tokens are as kv_store wrote them (not changed by kv_compress);
// handles of blocks that hold no pages.
struct KvShareArgs {
  KvPool pool;
  std::span<const KvShare> shares;
};

// Lets slots begin with the tokens of prefix blocks. Each page gets one more owner, and the token
// counts of the rows grow. Token scores, if the pool has them, are set to the tokens' positions and
// a score of 0. Takes no page from the free list.
// Requires: slots without tokens; room in each row between its high pages and its low pages.
struct KvAttachArgs {
  KvPool pool;
  std::span<const KvAttachment> attachments;
};

// Gives a slot its own copies of pages that it shares with prefix blocks, so that kv_compress may
// change them.
// Requires: the last `tokens` tokens of the high tier of each row are in full pages, each with
// several owners; free pages for the copies.
struct KvOwnArgs {
  KvPool pool;
  int32_t slot = 0;
  uint8_t tier = 0;  // of the slot's high tier: index into KvPagesView::layouts
  int32_t tokens = 0;

  constexpr int32_t row_pages() const { return tokens / pool.pages.layouts[tier].capacity; }
};

// Empties prefix blocks. A page returns to the free list when its last owner releases it.
// Requires: each handle's block holds pages, unless all layers have windows.
struct KvEvictArgs {
  KvPool pool;
  std::span<const int32_t> handles;
  bool windows_only = false;  // empties only the rows of layers with a window
};

// Demotes whole prefix blocks: encodes them again in a format with fewer bytes, in place. Rows of
// layers with a window stay as they are. (Single
// tokens of a slot are demoted by kv_compress.) A token's codes (or floats) are decoded to f32 and
// quantised again. Pages that become empty return to the free list.
// Requires: pages that no page-table row and no other prefix block holds; a target format of codes,
// or a sparse one, whose pages hold at least as many tokens.
struct KvDemoteArgs {
  KvPool pool;
  std::span<const PrefixBlock> prefix_blocks;  // with their current formats
  uint8_t tier = 0;                            // target format: index into KvPagesView::layouts
  std::span<std::byte> scratch;                // Backend::kv_demote_scratch_bytes(...)
};

// Compresses sequences, in place. With the rule `budget`, the policy's allocator first divides the
// budget of tokens over the sequence's page-table rows. Then the rule decides about the tokens of
// each row, separately for each layer and KV head:
// - Demoted tokens are decoded and encoded again in the low tier's format, at the low tier's end.
//   Keys for a sparse low tier keep the channels that rank highest by the policy's key_score.
// - Dropped tokens are removed.
// - Gaps in a tier are filled with the tier's last tokens, copied unchanged with their token
//   scores.
//
// The work is therefore proportional to the changes. A token's place in its row no longer implies
// its position; its token score holds the position. Pages that end up empty return to the free
// list, with one prefix sum for all rows.
//
// The rule evaluates tokens once they have left the recent groups, kKvGroup at a time: positions
// [evaluated, evaluated_after()) are new to it. Each rule has its own criterion for the older ones
// (KvRule).
//
// In each tier, everything up to the end of its last page with several owners stays unchanged.
//
// Rows of layers with a window keep all tokens, but those of a replay, and have no part in the
// budget.
//
// Requires: if the policy has a low tier, layers * kv_heads free pages for each sequence (a row may
// need a page before it frees one, and may end with one page more); tokens <
// pages.row_token_scores; kv_score has run in every step that stored tokens of this slot (attached
// prefix tokens have a score of 0); for key_score output_aware, kv_score has seen every query of
// the newest closed group and the open one.
struct KvCompressArgs {
  KvPool pool;
  std::span<const KvCompression> sequences;
  std::span<KvCompressed> results;  // one for each of `sequences`
  std::span<std::byte> scratch;     // Backend::kv_compress_scratch_bytes(...), 64-byte aligned
};

}  // namespace tessera
