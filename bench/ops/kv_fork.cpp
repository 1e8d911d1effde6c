#include <algorithm>
#include <memory>
#include <vector>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"
#include "bench/ops/used_up_slots.h"
#include "kernels/kv/kv_arena.h"

namespace tessera::bench {
namespace {

constexpr int32_t kForkTokens = 160;  // two pages are shared, the residual buffer is copied

// Half of the slots hold sequences. The other slots become forks of them in turn.
class ForkSlots {
 public:
  ForkSlots(KvFormat format, const Setup& setup, const Shape& shape)
      : device_(*setup.device),
        backend_(device_.backend(setup.isas[0])),
        stream_(device_.stream()) {
    KvArenaShape arena{
        .formats = {format},
        .head_dim = shape.head_dim,
        .page_bytes = KvPageLayout::make(format, shape.head_dim, kKvGroup).page_bytes,
        .layers = shape.layers,
        .kv_heads = shape.kv_heads,
        .context = kForkTokens};
    const int64_t copied_bytes = 2 * arena.slot_residual_bytes();  // one read, one written
    sources_ = static_cast<int32_t>(
        setup.as_in_model ? 2 : std::max<int64_t>(2, div_ceil(setup.memory_bytes, copied_bytes)));
    arena.slots = 2 * sources_;
    arena.pages = static_cast<int32_t>(sources_ * arena.slot_rows() * arena.row_pages());
    arena_ = KvArena::make(arena, backend_.memory, stream_);
    if (arena_ == nullptr) {
      exit_with_error("the device has not enough memory; ask for less with --memory");
    }
    device_.repeat(arena_->view().residuals, arena.slots * arena.slot_residual_bytes(),
                   std::vector{std::byte{1}});
    std::vector<KvGrowth> grown;
    for (int32_t slot = 0; slot < sources_; ++slot) {
      grown.push_back({slot, {}, arena.closed_tokens()});
    }
    backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = grown}, stream_);
    device_.upload(arena_->view().rows,
                   std::vector<KvRow>(static_cast<size_t>(sources_ * arena.slot_rows()),
                                      KvRow{arena.closed_tokens(), 0}));
  }

  int64_t cycled_bytes() const { return 2 * sources_ * arena_->shape().slot_residual_bytes(); }
  int64_t calls() const { return sources_; }

  // Returns: cost of the first fork, computed before it is made.
  OpCost cost() {
    const KvFork fork{0, sources_, {}};
    return op_cost(KvForkArgs{.pool = arena_->host_pool(), .forks = {&fork, 1}});
  }

  // Requires: the caller executes every returned fork, because the next one depends on it.
  KvForkArgs next() {
    fork_ = {cursor_, sources_ + cursor_, {}};
    forked_.push_back(fork_.to);
    cursor_ = (cursor_ + 1) % sources_;
    return {.pool = arena_->pool(), .forks = {&fork_, 1}};
  }

  // Releases the slots that have become forks.
  void restore() {
    backend_.kv_resize({.pool = arena_->pool(), .released = forked_, .grown = {}}, stream_);
    forked_.clear();
  }

 private:
  const Device& device_;
  const Backend& backend_;
  Stream stream_;
  std::unique_ptr<KvArena> arena_;
  int32_t sources_ = 0;
  int32_t cursor_ = 0;
  KvFork fork_;
  std::vector<int32_t> forked_;  // slots
};

std::vector<Case> fork_cases(const Setup& setup, const Shape& shape) {
  return cases_of_used_up_slots<ForkSlots, &Backend::kv_fork>(kForkTokens, setup, shape);
}

}  // namespace

Op kv_fork_op() {
  return {"kv_fork", "a sequence's copy, which shares its whole pages", fork_cases};
}

}  // namespace tessera::bench
