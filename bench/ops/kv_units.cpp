#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

constexpr int32_t kUnitPages = 4;
constexpr int32_t kUnits = 8;  // of one prompt: 2048 tokens in pages of 64
constexpr int32_t kRowPages = kUnits * kUnitPages;
constexpr int32_t kTokens = kRowPages * kKvGroup;

// Page tables, a free list and owners alone, as the ops look at no page: slots, and handles for as
// many units as each slot's pages make. A call takes the next slot; what it did is undone outside
// of the timed part.
class Units {
 public:
  Units(const Setup& setup, const Shape& shape)
      : backend_(setup.device->backend(setup.isas[0])),
        stream_(setup.device->stream()),
        slot_rows_(int64_t{shape.layers} * shape.kv_heads),
        slots_(static_cast<int32_t>(
            setup.as_in_model ? 2
                              : std::max<int64_t>(2, div_ceil(setup.memory_bytes, slot_bytes())))),
        tables_(ids() * int64_t{sizeof(int32_t)}),
        unit_tables_(ids() * int64_t{sizeof(int32_t)}),
        free_list_(ids() * int64_t{sizeof(int32_t)}),
        owners_(ids() * int64_t{sizeof(uint16_t)}),
        rows_(static_cast<size_t>(slots_ * slot_rows_)),
        free_range_{0, ids()} {
    pool_.tables = reinterpret_cast<int32_t*>(tables_.span().data());
    pool_.unit_tables = reinterpret_cast<int32_t*>(unit_tables_.span().data());
    pool_.free_list = reinterpret_cast<int32_t*>(free_list_.span().data());
    pool_.owners = reinterpret_cast<uint16_t*>(owners_.span().data());
    std::fill_n(pool_.tables, ids(), kNoPage);
    std::fill_n(pool_.unit_tables, ids(), kNoPage);
    std::iota(pool_.free_list, pool_.free_list + ids(), 0);
    pool_.pages.tables = pool_.tables;
    pool_.pages.rows = rows_.data();
    pool_.pages.layouts[0] = KvPageLayout::make(kKvF16, shape.head_dim, kKvGroup);
    pool_.pages.layers = shape.layers;
    pool_.pages.kv_heads = shape.kv_heads;
    pool_.pages.row_pages = kRowPages;
    pool_.slots = slots_;
    pool_.page_count = static_cast<int32_t>(ids());
    pool_.free_range = &free_range_;
    pool_.units = slots_ * kUnits;
    pool_.unit_pages = kUnitPages;
    pool_.unit_tokens = kUnitPages * kKvGroup;
  }

  int64_t count() const { return slots_; }
  int64_t cycled_bytes() const { return slots_ * slot_bytes(); }

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

  // Of one slot, whose units have handles of their own.
  void fill(int32_t slot) {
    const KvGrowth grown[] = {{slot, {}, kTokens}};
    backend_.kv_resize({.pool = pool_, .released = {}, .grown = grown}, stream_);
    std::fill_n(rows_.begin() + slot * slot_rows_, slot_rows_, KvRow{kTokens, 0});
  }
  void release(int32_t slot) {
    const int32_t released[] = {slot};
    backend_.kv_resize({.pool = pool_, .released = released, .grown = {}}, stream_);
  }
  // Units that nobody else holds.
  void make_units(int32_t slot) {
    fill(slot);
    backend_.kv_share(share(slot), stream_);
    release(slot);
  }
  void drop_units(int32_t slot) { backend_.kv_drop(drop(slot), stream_); }

  KvShareArgs share(int32_t slot) {
    for (int32_t i = 0; i < kUnits; ++i) {
      shares_[i] = {slot, 0, i * pool_.unit_tokens, slot * kUnits + i};
    }
    return {.pool = pool_, .shares = shares_};
  }
  KvAttachArgs attach(int32_t slot) {
    for (int32_t i = 0; i < kUnits; ++i) {
      units_[i] = {slot * kUnits + i, 0};
    }
    attachment_ = {slot, {}, units_};
    return {.pool = pool_, .attachments = {&attachment_, 1}};
  }
  KvDropArgs drop(int32_t slot) {
    std::iota(handles_, handles_ + kUnits, slot * kUnits);
    return {.pool = pool_, .handles = handles_};
  }

 private:
  int64_t ids() const { return slots_ * slot_rows_ * kRowPages; }
  int64_t slot_bytes() const {  // what an op goes over
    return slot_rows_ * kRowPages * int64_t{2 * sizeof(int32_t) + sizeof(uint16_t)};
  }

  const Backend& backend_;
  Stream stream_;
  int64_t slot_rows_;
  int32_t slots_;
  MappedMemory tables_;
  MappedMemory unit_tables_;
  MappedMemory free_list_;
  MappedMemory owners_;
  std::vector<KvRow> rows_;
  KvFreeRange free_range_;
  KvPool pool_;
  int32_t cursor_ = 0;
  std::vector<int32_t> used_;  // slots
  KvShare shares_[kUnits];
  KvUnit units_[kUnits];
  KvAttachment attachment_;
  int32_t handles_[kUnits];
};

// One of the three ops: how slots are before it, its call and what undoes that.
struct UnitOp {
  void (*begin)(Units& units, int32_t slot);
  OpCost (*cost)(Units& units);  // of slot 0
  void (*call)(Units& units, const Backend& backend, Stream stream);
  void (*undo)(Units& units, int32_t slot);
};

constexpr UnitOp kShare{
    .begin = [](Units& units, int32_t slot) { units.fill(slot); },
    .cost = [](Units& units) { return op_cost(units.share(0)); },
    .call = [](Units& units, const Backend& backend,
               Stream stream) { backend.kv_share(units.share(units.next_slot()), stream); },
    .undo = [](Units& units, int32_t slot) { units.drop_units(slot); }};

constexpr UnitOp kAttach{
    .begin = [](Units& units, int32_t slot) { units.make_units(slot); },
    .cost = [](Units& units) { return op_cost(units.attach(0)); },
    .call = [](Units& units, const Backend& backend,
               Stream stream) { backend.kv_attach(units.attach(units.next_slot()), stream); },
    .undo = [](Units& units, int32_t slot) { units.release(slot); }};

constexpr UnitOp kDrop{
    .begin = [](Units& units, int32_t slot) { units.make_units(slot); },
    .cost = [](Units& units) { return op_cost(units.drop(0)); },
    .call = [](Units& units, const Backend& backend,
               Stream stream) { backend.kv_drop(units.drop(units.next_slot()), stream); },
    .undo = [](Units& units, int32_t slot) { units.make_units(slot); }};

std::vector<Variant> prepare(const UnitOp& op, const Setup& setup, const Shape& shape) {
  const auto units = std::make_shared<Units>(setup, shape);
  for (int32_t slot = 0; slot < units->count(); ++slot) {
    op.begin(*units, slot);
  }
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back(
        {.format = "-",
         .isa = std::string(isa),
         .peer = {},
         .cost = op.cost(*units),
         .cycled_bytes = units->cycled_bytes(),
         .call = [units, &op, &backend,
                  stream = setup.device->stream()] { op.call(*units, backend, stream); },
         .restore = [units, &op] { units->undo([&](int32_t slot) { op.undo(*units, slot); }); },
         .most_calls = std::min<int64_t>(1000, units->count())});
  }
  return variants;
}

template <const UnitOp& op>
std::vector<Case> cases(const Setup& setup, const Shape& shape) {
  const int32_t rows = shape.layers * shape.kv_heads;
  return {{.label = "units " + std::to_string(kUnits) + " pages " + std::to_string(kUnitPages) +
                    " rows " + std::to_string(rows),
           .parameters = {{"units", kUnits}, {"pages", kUnitPages}, {"rows", rows}},
           .prepare = [=, &setup] { return prepare(op, setup, shape); }}};
}

}  // namespace

Op kv_share_op() {
  return {"kv_share", "a prompt's pages, held for other sequences", cases<kShare>};
}

Op kv_attach_op() {
  return {"kv_attach", "a slot that begins with units", cases<kAttach>};
}

Op kv_drop_op() {
  return {"kv_drop", "units that nobody else holds, emptied", cases<kDrop>};
}

}  // namespace tessera::bench
