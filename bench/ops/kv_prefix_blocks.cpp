#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/ops/ops.h"
#include "bench/ops/page_tables.h"

namespace tessera::bench {
namespace {

constexpr int32_t kPrefixBlockPages = 4;
constexpr int32_t kPrefixBlocks = 8;  // blocks of one prompt: 2048 tokens in pages of 64
constexpr int32_t kRowPages = kPrefixBlocks * kPrefixBlockPages;
constexpr int32_t kTokens = kRowPages * kKvGroup;

// Slots, and handles for as many prefix blocks as the pages of each slot make. A call uses the next
// slot. Its effect is undone outside of the timed part.
class PrefixBlocks {
 public:
  PrefixBlocks(const Setup& setup, const Shape& shape)
      : backend_(setup.device->backend(setup.isas[0])),
        stream_(setup.device->stream()),
        slot_bytes_(PageTables::slot_bytes(kRowPages, shape)),
        slots_(static_cast<int32_t>(
            setup.as_in_model ? 2
                              : std::max<int64_t>(2, div_ceil(setup.memory_bytes, slot_bytes_)))),
        tables_({.slots = slots_,
                 .row_pages = kRowPages,
                 .prefix_blocks = slots_ * kPrefixBlocks,
                 .prefix_block_pages = kPrefixBlockPages},
                setup, shape) {}

  int64_t count() const { return slots_; }
  int64_t cycled_bytes() const { return slots_ * slot_bytes_; }
  const KvPool& pool() const { return tables_.pool(); }
  template <class Cost>
  OpCost cost(Cost&& cost_of) const {
    return tables_.cost(cost_of);
  }

  int32_t next_slot() {
    const int32_t slot = cursor_;
    cursor_ = (cursor_ + 1) % slots_;
    used_.push_back(slot);
    return slot;
  }
  template <class Undo>
  void undo(Undo&& undo) {
    for (const int32_t slot : used_) {
      undo(slot);
    }
    used_.clear();
  }

  // The functions below work on one slot. Its prefix blocks have handles of their own.
  void fill(int32_t slot) {
    const KvGrowth grown[] = {{slot, {}, kTokens}};
    backend_.kv_resize({.pool = pool(), .released = {}, .grown = grown}, stream_);
    tables_.set_tokens(slot, kTokens);
  }
  void release(int32_t slot) {
    const int32_t released[] = {slot};
    backend_.kv_resize({.pool = pool(), .released = released, .grown = {}}, stream_);
  }
  // Makes prefix blocks that no slot holds.
  void make_prefix_blocks(int32_t slot) {
    fill(slot);
    backend_.kv_share(share(slot, pool()), stream_);
    release(slot);
  }
  void evict_blocks(int32_t slot) { backend_.kv_evict(drop(slot, pool()), stream_); }

  KvShareArgs share(int32_t slot, const KvPool& pool) {
    for (int32_t i = 0; i < kPrefixBlocks; ++i) {
      shares_[i] = {slot, 0, i * pool.prefix_block_tokens, slot * kPrefixBlocks + i};
    }
    return {.pool = pool, .shares = shares_};
  }
  KvAttachArgs attach(int32_t slot, const KvPool& pool) {
    for (int32_t i = 0; i < kPrefixBlocks; ++i) {
      prefix_blocks_[i] = {slot * kPrefixBlocks + i, 0};
    }
    attachment_ = {slot, {}, prefix_blocks_};
    return {.pool = pool, .attachments = {&attachment_, 1}};
  }
  KvEvictArgs drop(int32_t slot, const KvPool& pool) {
    std::iota(handles_, handles_ + kPrefixBlocks, slot * kPrefixBlocks);
    return {.pool = pool, .handles = handles_};
  }

 private:
  const Backend& backend_;
  Stream stream_;
  int64_t slot_bytes_;  // bytes that an op accesses
  int32_t slots_;
  PageTables tables_;
  int32_t cursor_ = 0;
  std::vector<int32_t> used_;  // slots
  KvShare shares_[kPrefixBlocks];
  PrefixBlock prefix_blocks_[kPrefixBlocks];
  KvAttachment attachment_;
  int32_t handles_[kPrefixBlocks];
};

// One of the three ops: the state of a slot before it, its cost, its call, and a call that undoes
// it.
struct PrefixBlockOp {
  void (*begin)(PrefixBlocks& prefix_blocks, int32_t slot);
  OpCost (*cost)(PrefixBlocks& prefix_blocks, const KvPool& pool);  // cost of the call on slot 0
  void (*call)(PrefixBlocks& prefix_blocks, const Backend& backend, Stream stream);
  void (*undo)(PrefixBlocks& prefix_blocks, int32_t slot);
};

constexpr PrefixBlockOp kShare{
    .begin = [](PrefixBlocks& prefix_blocks, int32_t slot) { prefix_blocks.fill(slot); },
    .cost = [](PrefixBlocks& prefix_blocks,
               const KvPool& pool) { return op_cost(prefix_blocks.share(0, pool)); },
    .call =
        [](PrefixBlocks& prefix_blocks, const Backend& backend, Stream stream) {
          backend.kv_share(prefix_blocks.share(prefix_blocks.next_slot(), prefix_blocks.pool()),
                           stream);
        },
    .undo = [](PrefixBlocks& prefix_blocks, int32_t slot) { prefix_blocks.evict_blocks(slot); }};

constexpr PrefixBlockOp kAttach{
    .begin = [](PrefixBlocks& prefix_blocks,
                int32_t slot) { prefix_blocks.make_prefix_blocks(slot); },
    .cost = [](PrefixBlocks& prefix_blocks,
               const KvPool& pool) { return op_cost(prefix_blocks.attach(0, pool)); },
    .call =
        [](PrefixBlocks& prefix_blocks, const Backend& backend, Stream stream) {
          backend.kv_attach(prefix_blocks.attach(prefix_blocks.next_slot(), prefix_blocks.pool()),
                            stream);
        },
    .undo = [](PrefixBlocks& prefix_blocks, int32_t slot) { prefix_blocks.release(slot); }};

constexpr PrefixBlockOp kEvict{
    .begin = [](PrefixBlocks& prefix_blocks,
                int32_t slot) { prefix_blocks.make_prefix_blocks(slot); },
    .cost = [](PrefixBlocks& prefix_blocks,
               const KvPool& pool) { return op_cost(prefix_blocks.drop(0, pool)); },
    .call =
        [](PrefixBlocks& prefix_blocks, const Backend& backend, Stream stream) {
          backend.kv_evict(prefix_blocks.drop(prefix_blocks.next_slot(), prefix_blocks.pool()),
                           stream);
        },
    .undo = [](PrefixBlocks& prefix_blocks,
               int32_t slot) { prefix_blocks.make_prefix_blocks(slot); }};

std::vector<Variant> prepare_prefix_block(const PrefixBlockOp& op, const Setup& setup,
                                          const Shape& shape) {
  const auto prefix_blocks = std::make_shared<PrefixBlocks>(setup, shape);
  for (int32_t slot = 0; slot < prefix_blocks->count(); ++slot) {
    op.begin(*prefix_blocks, slot);
  }
  const OpCost cost =
      prefix_blocks->cost([&](const KvPool& pool) { return op.cost(*prefix_blocks, pool); });
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back(
        {.format = "-",
         .isa = std::string(isa),
         .peer = {},
         .cost = cost,
         .cycled_bytes = prefix_blocks->cycled_bytes(),
         .call = [prefix_blocks, &op, &backend,
                  stream = setup.device->stream()] { op.call(*prefix_blocks, backend, stream); },
         .restore =
             [prefix_blocks, &op] {
               prefix_blocks->undo([&](int32_t slot) { op.undo(*prefix_blocks, slot); });
             },
         .max_calls = std::min<int64_t>(1000, prefix_blocks->count())});
  }
  return variants;
}

template <const PrefixBlockOp& op>
std::vector<Case> prefix_block_cases(const Setup& setup, const Shape& shape) {
  const int32_t rows = shape.layers * shape.kv_heads;
  return {{.label = "prefix blocks " + std::to_string(kPrefixBlocks) + " pages " +
                    std::to_string(kPrefixBlockPages) + " rows " + std::to_string(rows),
           .parameters = {{"prefix_blocks", kPrefixBlocks},
                          {"pages", kPrefixBlockPages},
                          {"rows", rows}},
           .prepare = [=, &setup] { return prepare_prefix_block(op, setup, shape); }}};
}

}  // namespace

Op kv_share_op() {
  return {"kv_share", "a prompt's pages, held for other sequences", prefix_block_cases<kShare>};
}

Op kv_attach_op() {
  return {"kv_attach", "a slot that begins with prefix blocks", prefix_block_cases<kAttach>};
}

Op kv_evict_op() {
  return {"kv_evict", "prefix blocks without another owner, evicted", prefix_block_cases<kEvict>};
}

}  // namespace tessera::bench
