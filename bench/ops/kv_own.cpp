#include <vector>

#include "bench/ops/kv_slots.h"
#include "bench/ops/ops.h"
#include "bench/ops/used_up_slots.h"

namespace tessera::bench {
namespace {

constexpr int32_t kOwnTokens = 448;  // short blocks behind a path of sections of 512 tokens

// Slots that begin with a prefix block each. A call copies the pages of the next slot's block.
class OwningSlots {
 public:
  OwningSlots(KvFormat format, const Setup& setup, const Shape& shape)
      : slots_(arena_shape(format, setup, shape), setup) {
    for (int32_t slot = 0; slot < slots_.arena().shape().slots; ++slot) {
      make_block(slot);
      attach(slot);
    }
  }

  int64_t calls() { return slots_.arena().shape().slots; }
  int64_t cycled_bytes() { return calls() * copied_bytes(slots_.arena().shape()); }
  OpCost cost() { return op_cost(args_of(0, slots_.arena().host_pool())); }

  // Requires: the caller executes every returned call, because the next one depends on it.
  KvOwnArgs next() {
    const int32_t slot = cursor_;
    cursor_ = (cursor_ + 1) % static_cast<int32_t>(calls());
    used_.push_back(slot);
    return args_of(slot, slots_.arena().pool());
  }

  // Releases the copies. Their slots begin with their blocks again.
  void restore() {
    slots_.release(used_);
    for (const int32_t slot : used_) {
      attach(slot);
    }
    used_.clear();
  }

 private:
  static int64_t copied_bytes(const KvArenaShape& arena) {  // of one call: read and written
    return 2 * arena.slot_rows() * arena.row_pages() * arena.page_bytes;
  }
  static KvArenaShape arena_shape(KvFormat format, const Setup& setup, const Shape& shape) {
    KvArenaShape arena{
        .formats = {format},
        .head_dim = shape.head_dim,
        .page_bytes = KvPageLayout::make(format, shape.head_dim, kKvGroup).page_bytes,
        .layers = shape.layers,
        .kv_heads = shape.kv_heads,
        .context = kOwnTokens,
        .prefix_block_tokens = kOwnTokens,
        .prefix_block_tiers = {0}};
    arena.slots = KvSlots::count(setup, copied_bytes(arena));
    arena.pages = static_cast<int32_t>(2 * arena.rows() * arena.row_pages());
    return arena;
  }
  static KvOwnArgs args_of(int32_t slot, const KvPool& pool) {
    return {.pool = pool, .slot = slot, .tier = 0, .tokens = kOwnTokens};
  }

  // A prefix block that has the slot's number and no other owner.
  void make_block(int32_t slot) {
    slots_.append(slot, {}, kOwnTokens);
    const KvShare shares[] = {{.slot = slot, .tier = 0, .first = 0, .handle = slot}};
    slots_.backend().kv_share({slots_.arena().pool(), shares}, slots_.stream());
    slots_.release({&slot, 1});
  }

  void attach(int32_t slot) {
    const PrefixBlock blocks[] = {{.handle = slot}};
    const KvAttachment attachments[] = {{slot, {}, blocks}};
    slots_.backend().kv_attach({slots_.arena().pool(), attachments}, slots_.stream());
  }

  KvSlots slots_;
  int32_t cursor_ = 0;
  std::vector<int32_t> used_;  // slots
};

std::vector<Case> own_cases(const Setup& setup, const Shape& shape) {
  return cases_of_used_up_slots<OwningSlots, &Backend::kv_own>(kOwnTokens, setup, shape);
}

}  // namespace

Op kv_own_op() {
  return {"kv_own", "a slot's own copies of short prefix blocks", own_cases};
}

}  // namespace tessera::bench
