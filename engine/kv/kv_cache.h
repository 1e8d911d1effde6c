#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/kv_accounting.h"
#include "engine/kv/kv_compressor.h"
#include "engine/kv/kv_planning.h"
#include "engine/kv/kv_shape.h"
#include "engine/kv/kv_slot.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/row_growth.h"
#include "engine/kv/shared_prefixes.h"
#include "engine/kv/slot_table.h"
#include "engine/kv/swapped_kv.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_arena.h"
#include "kernels/kv/kv_page.h"
#include "kernels/kv/kv_policy.h"
#include "models/weights/aligned_memory.h"

namespace tessera {

// Errors: InvalidArgument (a rotated format, whose blocks are too small at this head dimension; a
// format whose pages the backend does not serve).
absl::Status check_served(const Backend& backend, KvFormat format, int32_t head_dim);

// Allocates, shares and frees all KV pages; the model's kv_store writes them. A slot is open while
// a running sequence owns it (KvSlot), else free. The host counts pages; page tables belong to the
// backend's kv_ ops. Not thread-safe: the engine thread is the only caller.
//
// Life of a slot: open_slot(), then SharedPrefixes::attach or fork() if it begins with stored
// tokens; or swap_in(). In each step reserve(), the model's forward pass, SharedPrefixes::insert,
// compress(). At the end release(). If a slot is preempted and not recomputable(), swap_out() comes
// before release().
//
// Functions that take pages need available pages (KvAccounting): they demote and evict prefix
// blocks until enough pages are free.
//
// With tensor parallelism each rank has a KvCache for its own KV heads, and all ranks make the same
// calls (RankTotals). Calls that compress, or that change the pages of a compressed slot, are
// collective, and so are swap_out() and KvAccounting::usage of such a slot.
class KvCache {
 public:
  // The page size is the one that wastes the least memory over the formats of all presets.
  // Errors:
  //   InvalidArgument, with the numbers: check() refuses a preset; f32 is combined with another
  //     format; the backend has no kernels for a format; `bytes` is less than the residual buffers
  //     and tables of all slots plus one whole context; `bytes` is more pages than there are page
  //     ids.
  //   ResourceExhausted: the system refuses the memory.
  static absl::StatusOr<std::unique_ptr<KvCache>> create(const KvCacheOptions& options,
                                                         const Backend& backend, Stream stream);
  // Requires: every slot is released.
  ~KvCache();

  // Returns: OK if sequences of this cache may use `policy`.
  // Errors: InvalidArgument names the wrong field, or the feature that this cache does not serve.
  absl::Status check(const KvPolicy& policy) const;
  // Returns: OK if a request may accept cached prefix blocks down to `format`.
  // Errors: InvalidArgument names the formats that this cache keeps.
  absl::Status check_accepted(KvFormat format) const;

  // Opens an empty slot for a sequence with a prompt of `prompt_tokens` tokens.
  // Requires: a free slot; check(policy) is OK.
  // floor: smallest share of its policy's budget after tightening; 1 forbids tightening.
  KvSlot open_slot(const KvPolicy& policy, int32_t prompt_tokens, float floor = 1);
  // The same with the default preset.
  // Requires: that preset is not lossy.
  KvSlot open_slot() { return open_slot(default_policy_, 0); }

  // Allocates the pages for the groups that close when each slot reaches its reserved length.
  // Requires: each slot at most once; the tokens of earlier reservations are stored; not fewer
  // tokens than position() and not more than the context; available pages: KvDemand::growth.
  void reserve(std::span<const KvReservation> reservations);

  // Forgets the last tokens of a slot: the next ones take their places. For drafted tokens that
  // were not chosen.
  // Requires: at least the tokens of the open group's beginning remain; they are reserved and
  // stored, and no policy has scored the others.
  void truncate(const KvSlot& slot, int32_t tokens);

  // Gives back the pages of layers with windows that the slots' queries have passed (KvWindows).
  // Also demotes and drops tokens of slots that are due by their policies (KvCompressor::plan). The
  // tokens of a replay are forgotten, so the slot's position is the end of its section again.
  // Called once in each step, after the reserved tokens are stored and scored. reserve() assumes
  // the most pages that compressed rows may take; this call replaces them by the pages that
  // kv_resize took.
  // Requires: each slot at most once; available pages: one for each page-table row of the
  // compressed slots, if the policy has a low tier (KvDemand::growth counts them).
  void compress(std::span<const KvSlot* const> slots);

  // Tightens the slot's budget by `steps` steps, and drops or demotes tokens at once
  // (kv_tightening.h). Collective.
  // Requires: KvPlanning::tightening(slot) counts pages for these steps; its pages_needed are
  // available; all reserved tokens are stored and scored.
  void tighten(const KvSlot& slot, int32_t steps);

  // ---- section step. A temporary slot replays a block of the prefix cache. reserve() and the
  // forward pass treat it like one of a sequence.

  // Opens a slot that holds the path and ends with the block that is due. Its next tokens are those
  // of the block's replay.
  // Requires: a section step; a free slot; `due` is of SharedPrefixes::due_block(), and nothing has
  // changed since.
  KvSlot open_replay(const KvMatch& due);
  // Replaces the slot's last block in the prefix cache by the compressed section.
  // Requires: a slot of open_replay() whose replay is complete; nothing else uses the block.
  void compress_block(const KvSlot& slot);

  // Lets each target begin with tokens of its source. Full pages are shared; partly filled pages
  // and the residual buffer are copied.
  // Requires: source and target have the same policy, which is not private. A target is empty and
  // is no source. A copy ends where a group ends, or inside the source's open group. If the policy
  // replays, the source is not in a replay, the copy has all of its tokens, and neither of them
  // closes the section that is open now: compressing it would free pages that they share. Available
  // pages for each copy: KvDemand::pages_for minus KvDemand::full_pages.
  void fork(std::span<const KvCopy> copies);

  // Returns the slot's pages; the slot is then free. Blocks of the prefix cache are unlocked and
  // stay there.
  void release(KvSlot&& slot);
  // The same for several slots in one op. Empties the list.
  void release(std::vector<KvSlot>& slots);

  // Returns: true unless a private policy has compressed the slot. If true, a preempted sequence is
  // recomputed from its tokens; if false, it is swapped out before release(), where there is room.
  // Compressed sections are found in the prefix cache, or computed and replayed again. Recompute
  // gives the same bits, except for a prefix that was attached from demoted blocks: the next match
  // may find it in another format, or not at all.
  bool recomputable(const KvSlot& slot) const { return !slots_.at(slot).compressed; }
  // Returns: a copy of the slot in host memory; nothing if the room for such copies is full
  // (swap_room.h). A sequence without a copy is recomputed like others: its policy compresses it
  // again, and its further tokens may differ. The slot stays open; the caller releases it.
  // Requires: a compressed slot.
  std::optional<SwappedKv> swap_out(const KvSlot& slot) const;
  // Returns: a newly opened slot with the contents of `swapped`.
  // Requires: a free slot; swapped.pages() available pages.
  KvSlot swap_in(const SwappedKv& swapped);

  int64_t swapped_bytes() const { return swap_room_->used(); }  // of copies that exist

  // Inputs of the model's ops: addresses of the pages, formats of a slot's tiers, and scoring of
  // its tokens. The view points into memory that this cache owns.
  KvPagesView view() const { return arena_->view(); }
  KvTiers tiers(const KvSlot& slot) const { return slots_.at(slot).tiers; }
  // Requires: reserve() has run for the step. The tokens of a replay are counted there, and under a
  // policy that replays only their queries score.
  KvScoring scoring(const KvSlot& slot) const;
  // Position of the next token that the slot stores. During a replay this is the end of the section
  // plus the replayed tokens so far. compress() forgets these, and moves it back to that end.
  int32_t position(const KvSlot& slot) const { return slots_.at(slot).tokens; }
  // Returns: true if the tokens reserved last are those of a replay.
  bool replays(const KvSlot& slot) const { return slots_.at(slot).replayed() > 0; }

  // The parts that callers use directly.
  const KvArenaShape& shape() const { return arena_->shape(); }
  const KvAccounting& accounting() const { return accounting_; }
  const KvPlanning& planning() const { return planning_; }
  SharedPrefixes& prefixes() { return prefixes_; }
  const SharedPrefixes& prefixes() const { return prefixes_; }

  // Aborts unless page owners, free pages and slot totals are consistent. Walks all pages: for
  // tests.
  void check_integrity() const;

 private:
  struct Memory {
    std::unique_ptr<KvArena> arena;
    AlignedMemory scratch;  // for kv_compress and kv_demote
    std::shared_ptr<SwapRoom> swap_room;
  };
  KvCache(const KvCacheOptions& options, Memory memory, const Backend& backend, Stream stream);
  void close(std::span<const int32_t> slots);
  void settle_growth();
  void compress_due(std::span<const KvSlot* const> slots);
  void pass_windows(std::span<const KvSlot* const> slots);
  void run_compressions(std::span<const KvCompression> planned);

  const KvPolicy default_policy_;
  const std::optional<KvPolicy> section_step_;
  const KvModel model_;
  const std::unique_ptr<KvArena> arena_;
  const AlignedMemory scratch_;
  const std::shared_ptr<SwapRoom> swap_room_;
  const Backend& backend_;
  const Stream stream_;
  const std::unique_ptr<PrefixCache> prefix_cache_;  // null: none
  SlotTable slots_;
  KvAccounting accounting_;
  const KvPlanning planning_;
  SharedPrefixes prefixes_;
  KvCompressor compressor_;
  RowGrowth growth_;           // of the last reserve()
  std::vector<KvFork> forks_;  // reused arguments of a call, like the next two; [slots]
  std::vector<int32_t> released_;
  std::vector<int32_t> compressed_;
  std::vector<KvPassed> passed_;
};

}  // namespace tessera
