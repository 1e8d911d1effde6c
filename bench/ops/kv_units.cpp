#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/ops/ops.h"
#include "bench/ops/page_tables.h"

namespace tessera::bench {
namespace {

constexpr int32_t kUnitPages = 4;
constexpr int32_t kUnits = 8;  // of one prompt: 2048 tokens in pages of 64
constexpr int32_t kRowPages = kUnits * kUnitPages;
constexpr int32_t kTokens = kRowPages * kKvGroup;

// Slots, and handles for as many units as each slot's pages make. A call takes the next slot; what
// it did is undone outside of the timed part.
class Units {
 public:
  Units(const Setup& setup, const Shape& shape)
      : backend_(setup.device->backend(setup.isas[0])),
        stream_(setup.device->stream()),
        slot_bytes_(PageTables::slot_bytes(kRowPages, shape)),
        slots_(static_cast<int32_t>(
            setup.as_in_model ? 2
                              : std::max<int64_t>(2, div_ceil(setup.memory_bytes, slot_bytes_)))),
        tables_({.slots = slots_,
                 .row_pages = kRowPages,
                 .units = slots_ * kUnits,
                 .unit_pages = kUnitPages},
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

  // Of one slot, whose units have handles of their own.
  void fill(int32_t slot) {
    const KvGrowth grown[] = {{slot, {}, kTokens}};
    backend_.kv_resize({.pool = pool(), .released = {}, .grown = grown}, stream_);
    tables_.set_tokens(slot, kTokens);
  }
  void release(int32_t slot) {
    const int32_t released[] = {slot};
    backend_.kv_resize({.pool = pool(), .released = released, .grown = {}}, stream_);
  }
  // Units that nobody else holds.
  void make_units(int32_t slot) {
    fill(slot);
    backend_.kv_share(share(slot, pool()), stream_);
    release(slot);
  }
  void drop_units(int32_t slot) { backend_.kv_drop(drop(slot, pool()), stream_); }

  KvShareArgs share(int32_t slot, const KvPool& pool) {
    for (int32_t i = 0; i < kUnits; ++i) {
      shares_[i] = {slot, 0, i * pool.unit_tokens, slot * kUnits + i};
    }
    return {.pool = pool, .shares = shares_};
  }
  KvAttachArgs attach(int32_t slot, const KvPool& pool) {
    for (int32_t i = 0; i < kUnits; ++i) {
      units_[i] = {slot * kUnits + i, 0};
    }
    attachment_ = {slot, {}, units_};
    return {.pool = pool, .attachments = {&attachment_, 1}};
  }
  KvDropArgs drop(int32_t slot, const KvPool& pool) {
    std::iota(handles_, handles_ + kUnits, slot * kUnits);
    return {.pool = pool, .handles = handles_};
  }

 private:
  const Backend& backend_;
  Stream stream_;
  int64_t slot_bytes_;  // what an op goes over
  int32_t slots_;
  PageTables tables_;
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
  OpCost (*cost)(Units& units, const KvPool& pool);  // of slot 0
  void (*call)(Units& units, const Backend& backend, Stream stream);
  void (*undo)(Units& units, int32_t slot);
};

constexpr UnitOp kShare{
    .begin = [](Units& units, int32_t slot) { units.fill(slot); },
    .cost = [](Units& units, const KvPool& pool) { return op_cost(units.share(0, pool)); },
    .call =
        [](Units& units, const Backend& backend, Stream stream) {
          backend.kv_share(units.share(units.next_slot(), units.pool()), stream);
        },
    .undo = [](Units& units, int32_t slot) { units.drop_units(slot); }};

constexpr UnitOp kAttach{
    .begin = [](Units& units, int32_t slot) { units.make_units(slot); },
    .cost = [](Units& units, const KvPool& pool) { return op_cost(units.attach(0, pool)); },
    .call =
        [](Units& units, const Backend& backend, Stream stream) {
          backend.kv_attach(units.attach(units.next_slot(), units.pool()), stream);
        },
    .undo = [](Units& units, int32_t slot) { units.release(slot); }};

constexpr UnitOp kDrop{
    .begin = [](Units& units, int32_t slot) { units.make_units(slot); },
    .cost = [](Units& units, const KvPool& pool) { return op_cost(units.drop(0, pool)); },
    .call =
        [](Units& units, const Backend& backend, Stream stream) {
          backend.kv_drop(units.drop(units.next_slot(), units.pool()), stream);
        },
    .undo = [](Units& units, int32_t slot) { units.make_units(slot); }};

std::vector<Variant> prepare(const UnitOp& op, const Setup& setup, const Shape& shape) {
  const auto units = std::make_shared<Units>(setup, shape);
  for (int32_t slot = 0; slot < units->count(); ++slot) {
    op.begin(*units, slot);
  }
  const OpCost cost = units->cost([&](const KvPool& pool) { return op.cost(*units, pool); });
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back(
        {.format = "-",
         .isa = std::string(isa),
         .peer = {},
         .cost = cost,
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
