#include <algorithm>
#include <memory>

#include "bench/ops/kv_slots.h"
#include "bench/ops/ops.h"
#include "kernels/kv/kv_page_size.h"
#include "kernels/kv/kv_policy.h"

namespace tessera::bench {
namespace {

constexpr KvTiers kDemotedTiers{0, 1};

// Prefix blocks of the first format, which calls demote in turn. Outside of the timed part, demoted
// blocks are dropped and made again in the first format through slot 0.
class DemotedBlocks {
 public:
  DemotedBlocks(KvFormat from, KvFormat to, const Setup& setup, const Shape& shape)
      : slots_(arena_shape(from, to, setup, shape), setup),
        count_(std::max(
            2, slots_.arena().shape().pages / pages_of_prefix_block(slots_.arena().shape()))),
        scratch_(slots_.device(),
                 slots_.backend().kv_demote_scratch_bytes(slots_.arena().view(), slots_.stream())) {
    const int32_t tokens = slots_.arena().shape().prefix_block_tokens;
    slots_.append(0, kDemotedTiers, tokens);
    snapshot_ = slots_.save(0, kDemotedTiers, tokens);
    slots_.release(std::vector<int32_t>{0});
    for (int32_t handle = 0; handle < count_; ++handle) {
      make(handle);
    }
    prefix_block_ = {0, 0};
    cost_ = op_cost(args());  // reads no table
  }

  int32_t count() const { return count_; }
  int64_t cycled_bytes() const { return count_ * cost_.bytes(); }
  const OpCost& cost() const { return cost_; }

  KvDemoteArgs next() {
    prefix_block_ = {cursor_, 0};
    demoted_.push_back(cursor_);
    cursor_ = (cursor_ + 1) % count_;
    return args();
  }

  void restore() {
    slots_.backend().kv_evict({slots_.arena().pool(), demoted_}, slots_.stream());
    for (const int32_t handle : demoted_) {
      make(handle);
    }
    demoted_.clear();
  }

 private:
  static int32_t pages_of_prefix_block(const KvArenaShape& arena) {
    return static_cast<int32_t>(arena.slot_rows()) *
           (arena.prefix_block_tokens / arena.layout(0).capacity);
  }
  static KvArenaShape arena_shape(KvFormat from, KvFormat to, const Setup& setup,
                                  const Shape& shape) {
    const std::vector<KvFormatUse> uses{{from, true, true}, {to, true, true}};
    KvArenaShape arena{.formats = {from, to},
                       .head_dim = shape.head_dim,
                       .page_bytes = best_page_bytes(uses, shape.head_dim),
                       .slots = 1,
                       .layers = shape.layers,
                       .kv_heads = shape.kv_heads};
    const std::vector<KvPageLayout> layouts{arena.layout(0), arena.layout(1)};
    arena.prefix_block_tokens = prefix_block_tokens(layouts);
    arena.prefix_block_tiers = {0, 1};
    arena.context = arena.prefix_block_tokens;
    arena.pages = pages_of_prefix_block(arena);
    arena.pages *= KvSlots::count(setup, arena.pages * arena.page_bytes);
    return arena;
  }

  KvDemoteArgs args() {
    return {.pool = slots_.arena().pool(),
            .prefix_blocks = {&prefix_block_, 1},
            .tier = 1,
            .scratch = scratch_.span()};
  }

  void make(int32_t handle) {
    const int32_t slot[] = {0};
    const KvShare share[] = {{0, 0, 0, handle}};
    slots_.load(0, kDemotedTiers, slots_.arena().shape().prefix_block_tokens, snapshot_);
    slots_.backend().kv_share({slots_.arena().pool(), share}, slots_.stream());
    slots_.release(slot);
  }

  KvSlots slots_;
  int32_t count_;
  DeviceArray scratch_;
  std::vector<std::byte> snapshot_;  // a slot that holds one prefix block
  OpCost cost_;
  PrefixBlock prefix_block_;
  int32_t cursor_ = 0;
  std::vector<int32_t> demoted_;  // handles
};

std::vector<Variant> prepare_demote(KvFormat from, const Setup& setup, const Shape& shape) {
  std::vector<Variant> variants;
  for (const KvFormatName& to : setup.kv) {
    if (!to.format.is_codes() || to.format.key_bits > from.key_bits ||
        to.format.value_bits > from.value_bits || to.format == from) {
      continue;
    }
    const auto prefix_blocks = std::make_shared<DemotedBlocks>(from, to.format, setup, shape);
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back({.format = std::string(to.name),
                          .isa = std::string(isa),
                          .peer = {},
                          .cost = prefix_blocks->cost(),
                          .cycled_bytes = prefix_blocks->cycled_bytes(),
                          .call =
                              [prefix_blocks, &backend, stream = setup.device->stream()] {
                                backend.kv_demote(prefix_blocks->next(), stream);
                              },
                          .restore = [prefix_blocks] { prefix_blocks->restore(); },
                          .max_calls = prefix_blocks->count()});
    }
  }
  return variants;
}

std::vector<Case> demote_cases(const Setup& setup, const Shape& shape) {
  const int32_t rows = shape.layers * shape.kv_heads;
  std::vector<Case> all;
  for (const KvFormat from : {kKvF16, kKvK8V4}) {
    all.push_back({.label = "prefix block of " + name_of(from) + " rows " + std::to_string(rows),
                   .parameters = {{"rows", rows}},
                   .prepare = [=, &setup] { return prepare_demote(from, setup, shape); }});
  }
  return all;
}

}  // namespace

Op kv_demote_op() {
  return {"kv_demote", "a prefix block, encoded again in fewer bits", demote_cases};
}

}  // namespace tessera::bench
