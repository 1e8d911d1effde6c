#include <algorithm>
#include <memory>
#include <vector>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"
#include "kernels/kv/kv_arena.h"

namespace tessera::bench {
namespace {

constexpr int32_t kOwnTokens = 448;  // short blocks behind a path of sections of 512 tokens

// Slots that begin with a prefix block each. A call copies the pages of the next slot's block.
class OwningSlots {
 public:
  OwningSlots(KvFormat format, const Setup& setup, const Shape& shape)
      : device_(*setup.device),
        backend_(device_.backend(setup.isas[0])),
        stream_(device_.stream()) {
    KvArenaShape arena{
        .formats = {format},
        .head_dim = shape.head_dim,
        .page_bytes = KvPageLayout::make(format, shape.head_dim, kKvGroup).page_bytes,
        .layers = shape.layers,
        .kv_heads = shape.kv_heads,
        .context = kOwnTokens,
        .prefix_block_tokens = kOwnTokens,
        .prefix_block_tiers = {0}};
    const int64_t slot_pages = arena.slot_rows() * arena.row_pages();
    copied_bytes_ = 2 * slot_pages * arena.page_bytes;  // read and written
    arena.slots = static_cast<int32_t>(
        setup.as_in_model ? 2 : std::max<int64_t>(2, div_ceil(setup.memory_bytes, copied_bytes_)));
    arena.pages = static_cast<int32_t>(2 * arena.slots * slot_pages);
    arena_ = KvArena::make(arena, backend_.memory, stream_);
    if (arena_ == nullptr) {
      exit_with_error("the device has not enough memory; ask for less with --memory");
    }
    device_.repeat(arena_->view().arena, arena.arena_bytes(), std::vector{std::byte{1}});
    for (int32_t slot = 0; slot < arena.slots; ++slot) {
      make_block(slot);
      attach(slot);
    }
  }

  int64_t slots() const { return arena_->shape().slots; }
  int64_t cycled_bytes() const { return slots() * copied_bytes_; }
  OpCost cost() { return op_cost(args_of(0, arena_->host_pool())); }

  // Requires: the caller executes every returned call, because the next one depends on it.
  KvOwnArgs next() {
    const int32_t slot = cursor_;
    cursor_ = (cursor_ + 1) % static_cast<int32_t>(slots());
    used_.push_back(slot);
    return args_of(slot, arena_->pool());
  }

  // Releases the copies. Their slots begin with their blocks again.
  void restore() {
    backend_.kv_resize({.pool = arena_->pool(), .released = used_, .grown = {}}, stream_);
    for (const int32_t slot : used_) {
      attach(slot);
    }
    used_.clear();
  }

 private:
  static KvOwnArgs args_of(int32_t slot, const KvPool& pool) {
    return {.pool = pool, .slot = slot, .tier = 0, .tokens = kOwnTokens};
  }

  // A prefix block that has the slot's number and no other owner.
  void make_block(int32_t slot) {
    const int32_t slots[] = {slot};
    const KvGrowth grown[] = {{slot, {}, kOwnTokens}};
    const int64_t rows = arena_->shape().slot_rows();
    backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = grown}, stream_);
    device_.upload(arena_->view().rows + slot * rows,
                   std::vector<KvRow>(static_cast<size_t>(rows), KvRow{kOwnTokens, 0}));
    const KvShare shares[] = {{.slot = slot, .tier = 0, .first = 0, .handle = slot}};
    backend_.kv_share({arena_->pool(), shares}, stream_);
    backend_.kv_resize({.pool = arena_->pool(), .released = slots, .grown = {}}, stream_);
  }

  void attach(int32_t slot) {
    const PrefixBlock blocks[] = {{.handle = slot}};
    const KvAttachment attachments[] = {{slot, {}, blocks}};
    backend_.kv_attach({arena_->pool(), attachments}, stream_);
  }

  const Device& device_;
  const Backend& backend_;
  Stream stream_;
  std::unique_ptr<KvArena> arena_;
  int64_t copied_bytes_ = 0;  // of one call
  int32_t cursor_ = 0;
  std::vector<int32_t> used_;  // slots
};

std::vector<Variant> prepare_own(const Setup& setup, const Shape& shape) {
  std::vector<Variant> variants;
  for (const KvFormatName& kv : setup.kv) {
    const auto slots = std::make_shared<OwningSlots>(kv.format, setup, shape);
    const Stream stream = setup.device->stream();
    const OpCost cost = slots->cost();
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back(
          {.format = std::string(kv.name),
           .isa = std::string(isa),
           .peer = {},
           .cost = cost,
           .cycled_bytes = slots->cycled_bytes(),
           .call = [slots, &backend, stream] { backend.kv_own(slots->next(), stream); },
           .restore = [slots] { slots->restore(); },
           .max_calls = slots->slots()});
    }
  }
  return variants;
}

std::vector<Case> own_cases(const Setup& setup, const Shape& shape) {
  const int32_t rows = shape.layers * shape.kv_heads;
  return {{.label = std::to_string(kOwnTokens) + " tokens rows " + std::to_string(rows),
           .parameters = {{"tokens", kOwnTokens}, {"rows", rows}},
           .prepare = [=, &setup] { return prepare_own(setup, shape); }}};
}

}  // namespace

Op kv_own_op() {
  return {"kv_own", "a slot's own copies of short prefix blocks", own_cases};
}

}  // namespace tessera::bench
