#include <algorithm>
#include <memory>

#include "bench/ops/kv_slots.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

constexpr int32_t kSwappedTokens = 992;  // 15 groups, and half of one in the residual buffer

// Slots, and host memory for a snapshot of each. All slots are swapped out once. After that they
// are swapped out again in turn, or, once released, swapped in in turn. Slots that were swapped in
// are released outside of the timed part.
class Snapshots {
 public:
  Snapshots(KvFormat format, const Setup& setup, const Shape& shape)
      : slots_(arena_shape(format, setup, shape), setup),
        snapshot_bytes_(static_cast<size_t>(slot_snapshot_bytes(slots_.arena().shape()))),
        bytes_(static_cast<int64_t>(snapshot_bytes_) * slots_.arena().shape().slots) {
    if (bytes_.data() == nullptr) {
      exit_with_error("the system has not enough memory; ask for less with --memory");
    }
    slots_.append(0, {}, kSwappedTokens / kKvGroup * kKvGroup);
    slots_.backend().kv_swap_out(next(), slots_.stream());
    for (int32_t slot = 1; slot < count(); ++slot) {
      const KvSnapshotArgs snapshot = next();
      std::copy_n(bytes_.data(), snapshot_bytes_, snapshot.bytes.data());
      slots_.backend().kv_swap_in(snapshot, slots_.stream());
    }
    KvSnapshotArgs first = next();
    first.pool = slots_.arena().host_pool();
    cost_ = op_cost(first);
  }

  int32_t count() { return slots_.arena().shape().slots; }
  int64_t cycled_bytes() { return count() * cost_.bytes(); }
  const OpCost& cost() const { return cost_; }

  KvSnapshotArgs next() {
    const int32_t slot = cursor_;
    cursor_ = (cursor_ + 1) % count();
    return {
        .pool = slots_.arena().pool(),
        .snapshot = {slot, {}, kSwappedTokens},
        .bytes = {bytes_.data() + static_cast<size_t>(slot) * snapshot_bytes_, snapshot_bytes_}};
  }

  void empty_all() {
    for (int32_t slot = 0; slot < count(); ++slot) {
      loaded_.push_back(slot);
    }
    empty_loaded();
  }
  KvSnapshotArgs next_to_load() {
    const KvSnapshotArgs args = next();
    loaded_.push_back(args.snapshot.slot);
    return args;
  }
  void empty_loaded() {
    slots_.release(loaded_);
    loaded_.clear();
  }

 private:
  static int64_t slot_snapshot_bytes(const KvArenaShape& arena) {
    return arena.slot_rows() * (arena.row_pages() * arena.page_bytes + int64_t{sizeof(KvRow)} +
                                arena.residual_layout().page_bytes);
  }
  static KvArenaShape arena_shape(KvFormat format, const Setup& setup, const Shape& shape) {
    KvArenaShape arena{
        .formats = {format},
        .head_dim = shape.head_dim,
        .page_bytes = KvPageLayout::make(format, shape.head_dim, kKvGroup).page_bytes,
        .layers = shape.layers,
        .kv_heads = shape.kv_heads,
        .context = kSwappedTokens};
    arena.slots = KvSlots::count(setup, 2 * slot_snapshot_bytes(arena));  // one read, one written
    return arena;
  }

  KvSlots slots_;
  size_t snapshot_bytes_;
  MemoryMapping bytes_;  // host memory
  OpCost cost_;
  int32_t cursor_ = 0;
  std::vector<int32_t> loaded_;  // slots
};

template <class Prepare>
std::vector<Case> cases_of(const Setup& setup, const Shape& shape, Prepare prepare) {
  const int32_t rows = shape.layers * shape.kv_heads;
  return {{.label = std::to_string(kSwappedTokens) + " tokens rows " + std::to_string(rows),
           .parameters = {{"tokens", kSwappedTokens}, {"rows", rows}},
           .prepare = [=, &setup] { return prepare(setup, shape); }}};
}

Variant variant_of(const KvFormatName& kv, std::string_view isa, Snapshots& snapshots) {
  return {.format = std::string(kv.name),
          .isa = std::string(isa),
          .peer = {},
          .cost = snapshots.cost(),
          .cycled_bytes = snapshots.cycled_bytes(),
          .call = {}};
}

std::vector<Variant> prepare_swap_out(const Setup& setup, const Shape& shape) {
  std::vector<Variant> variants;
  for (const KvFormatName& kv : setup.kv) {
    const auto snapshots = std::make_shared<Snapshots>(kv.format, setup, shape);
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back(variant_of(kv, isa, *snapshots));
      variants.back().call = [snapshots, &backend, stream = setup.device->stream()] {
        backend.kv_swap_out(snapshots->next(), stream);
      };
    }
  }
  return variants;
}

std::vector<Variant> prepare_swap_in(const Setup& setup, const Shape& shape) {
  std::vector<Variant> variants;
  for (const KvFormatName& kv : setup.kv) {
    const auto snapshots = std::make_shared<Snapshots>(kv.format, setup, shape);
    snapshots->empty_all();
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back(variant_of(kv, isa, *snapshots));
      variants.back().call = [snapshots, &backend, stream = setup.device->stream()] {
        backend.kv_swap_in(snapshots->next_to_load(), stream);
      };
      variants.back().restore = [snapshots] { snapshots->empty_loaded(); };
      variants.back().max_calls = snapshots->count();
    }
  }
  return variants;
}

std::vector<Case> swap_out_cases(const Setup& setup, const Shape& shape) {
  return cases_of(setup, shape, prepare_swap_out);
}
std::vector<Case> swap_in_cases(const Setup& setup, const Shape& shape) {
  return cases_of(setup, shape, prepare_swap_in);
}

}  // namespace

Op kv_swap_out_op() {
  return {"kv_swap_out", "the contents of a slot, copied to host memory", swap_out_cases};
}

Op kv_swap_in_op() {
  return {"kv_swap_in", "the contents of a slot, copied back", swap_in_cases};
}

}  // namespace tessera::bench
