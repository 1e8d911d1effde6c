#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/ops/ops.h"
#include "bench/ops/page_tables.h"

namespace tessera::bench {
namespace {

constexpr int32_t kResizedRowPages = 32;  // 2048 tokens in pages of 64

struct ResizeCase {
  int32_t slots = 1;  // slots that one call grows; it releases as many
  int32_t pages = 1;  // pages added to each row of these slots
};

// A call grows one set of slots and releases the set that has held its pages for longest. Half of
// all sets are full before and after each call.
class Groups {
 public:
  Groups(const ResizeCase& size, const Setup& setup, const Shape& shape)
      : size_(size),
        groups_(groups_of(size, setup, shape)),
        tables_({.slots = groups_ * size.slots, .row_pages = kResizedRowPages}, setup, shape),
        cycled_bytes_(pool().slots * PageTables::slot_bytes(kResizedRowPages, shape)),
        released_(static_cast<size_t>(size.slots)),
        grown_(static_cast<size_t>(size.slots)) {
    const Backend& backend = setup.device->backend(setup.isas[0]);
    for (int32_t group = 0; group < groups_ / 2; ++group) {
      grow(group);
      backend.kv_resize({.pool = pool(), .released = {}, .grown = grown_}, setup.device->stream());
    }
    cursor_ = groups_ / 2;
    cost_ = tables_.cost([this](const KvPool& pool) { return op_cost(args(pool)); });
  }

  int64_t cycled_bytes() const { return cycled_bytes_; }
  const OpCost& cost() const { return cost_; }

  // Requires: the caller executes every returned call, because the next one depends on it.
  KvResizeArgs next() {
    const KvResizeArgs next = args(pool());
    cursor_ = (cursor_ + 1) % groups_;
    return next;
  }

 private:
  static int32_t groups_of(const ResizeCase& size, const Setup& setup, const Shape& shape) {
    const int64_t group_bytes = size.slots * PageTables::slot_bytes(kResizedRowPages, shape);
    return static_cast<int32_t>(
        setup.as_in_model
            ? 2
            : std::max<int64_t>(2, round_up(div_ceil(setup.memory_bytes, group_bytes), 2)));
  }

  const KvPool& pool() const { return tables_.pool(); }
  void grow(int32_t group) {
    for (int32_t i = 0; i < size_.slots; ++i) {
      grown_[static_cast<size_t>(i)] = {group * size_.slots + i, {}, size_.pages * kKvGroup};
    }
  }
  KvResizeArgs args(const KvPool& pool) {
    grow(cursor_);
    std::iota(released_.begin(), released_.end(), (cursor_ + groups_ / 2) % groups_ * size_.slots);
    return {.pool = pool, .released = released_, .grown = grown_};
  }

  ResizeCase size_;
  int32_t groups_;  // sets of slots that one call changes
  int32_t cursor_ = 0;
  PageTables tables_;
  int64_t cycled_bytes_;
  OpCost cost_;
  std::vector<int32_t> released_;
  std::vector<KvGrowth> grown_;
};

std::vector<Variant> prepare_resize(const ResizeCase& size, const Setup& setup,
                                    const Shape& shape) {
  const auto groups = std::make_shared<Groups>(size, setup, shape);
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back({.format = "-",
                        .isa = std::string(isa),
                        .peer = {},
                        .cost = groups->cost(),
                        .cycled_bytes = groups->cycled_bytes(),
                        .call = [groups, &backend, stream = setup.device->stream()] {
                          backend.kv_resize(groups->next(), stream);
                        }});
  }
  return variants;
}

std::vector<Case> resize_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  for (const ResizeCase& size : {ResizeCase{1, kResizedRowPages}, ResizeCase{8, 1}}) {
    all.push_back({.label = "slots " + std::to_string(size.slots) + " pages " +
                            std::to_string(size.pages) + " rows " +
                            std::to_string(shape.layers * shape.kv_heads),
                   .parameters = {{"slots", size.slots},
                                  {"pages", size.pages},
                                  {"rows", shape.layers * shape.kv_heads}},
                   .prepare = [=, &setup] { return prepare_resize(size, setup, shape); }});
  }
  return all;
}

}  // namespace

Op kv_resize_op() {
  return {"kv_resize", "pages given to slots, and taken back from as many", resize_cases};
}

}  // namespace tessera::bench
