#include <algorithm>
#include <memory>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"
#include "kernels/kv_arena.h"

namespace tessera::bench {
namespace {

constexpr int32_t kPageTokens = 64;
constexpr int32_t kTokens =
    2 * kPageTokens + kPageTokens / 2;  // two pages are shared, half is copied

// Half of the slots hold sequences, the others become their copies in turn.
class Slots {
 public:
  Slots(KvFormat format, const Setup& setup, const Shape& shape)
      : backend_(setup.device->backend(setup.isas[0])), stream_(setup.device->stream()) {
    KvArenaShape arena{.layout = KvPageLayout::make(format, shape.head_dim, kPageTokens),
                       .layers = shape.layers,
                       .kv_heads = shape.kv_heads,
                       .context = kTokens};
    const int64_t rows = int64_t{shape.layers} * shape.kv_heads;
    const int64_t copied_bytes = 2 * rows * arena.layout.page_bytes;  // read there, written here
    sources_ = static_cast<int32_t>(
        setup.as_in_model ? 2 : std::max<int64_t>(2, div_ceil(setup.memory_bytes, copied_bytes)));
    arena.slots = 2 * sources_;
    arena.pages = static_cast<int32_t>(sources_ * rows * (arena.row_pages() + 1));
    arena_ = KvArena::make(arena);
    if (arena_ == nullptr) {
      give_up("the system has not enough memory; ask for less with --memory");
    }
    std::fill_n(arena_->view().arena, arena.arena_bytes(), std::byte{1});
    std::vector<KvRowResize> changes;
    for (int32_t slot = 0; slot < sources_; ++slot) {
      changes.push_back({slot, 0, arena.row_pages()});
    }
    backend_.kv_resize({.pool = arena_->pool(), .changes = changes}, stream_);
  }

  int64_t cycled_bytes() const { return arena_->shape().arena_bytes(); }
  int64_t sources() const { return sources_; }

  // Each call must be made, since the next counts on it.
  KvForkArgs next() {
    fork_ = {cursor_, sources_ + cursor_, kTokens};
    forked_.push_back({fork_.target, arena_->shape().row_pages(), 0});
    cursor_ = (cursor_ + 1) % sources_;
    return {.pool = arena_->pool(), .pages = arena_->view(), .forks = {&fork_, 1}};
  }

  // Empties the slots that have become copies.
  void restore() {
    backend_.kv_resize({.pool = arena_->pool(), .changes = forked_}, stream_);
    forked_.clear();
  }

 private:
  const Backend& backend_;
  Stream stream_;
  std::unique_ptr<KvArena> arena_;
  int32_t sources_ = 0;
  int32_t cursor_ = 0;
  KvRowFork fork_;
  std::vector<KvRowResize> forked_;
};

std::vector<Variant> prepare(const Setup& setup, const Shape& shape) {
  std::vector<Variant> variants;
  for (const KvFormatName& kv : setup.kv) {
    const auto slots = std::make_shared<Slots>(kv.format, setup, shape);
    const Stream stream = setup.device->stream();
    const KvForkArgs first = slots->next();
    const OpCost cost = op_cost(first);
    setup.device->backend(setup.isas[0]).kv_fork(first, stream);
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back(
          {.format = std::string(kv.name),
           .isa = std::string(isa),
           .peer = {},
           .cost = cost,
           .cycled_bytes = slots->cycled_bytes(),
           .call = [slots, &backend, stream] { backend.kv_fork(slots->next(), stream); },
           .restore = [slots] { slots->restore(); },
           .most_calls = slots->sources()});
    }
  }
  return variants;
}

std::vector<Case> cases(const Setup& setup, const Shape& shape) {
  const int32_t rows = shape.layers * shape.kv_heads;
  return {{.label = std::to_string(kTokens) + " tokens rows " + std::to_string(rows),
           .parameters = {{"tokens", kTokens}, {"rows", rows}},
           .prepare = [=, &setup] { return prepare(setup, shape); }}};
}

}  // namespace

Op kv_fork_op() {
  return {"kv_fork", "a sequence's copy, which shares its whole pages", cases};
}

}  // namespace tessera::bench
