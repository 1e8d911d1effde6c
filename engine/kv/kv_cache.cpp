#include "engine/kv/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace tessera {
namespace {

int32_t page_count(const KvBudget& of_all, int64_t tokens) {
  return static_cast<int32_t>(div_ceil(tokens, of_all.page_tokens));
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::create(const KvCacheOptions& options,
                                                         const Backend& backend, Stream stream) {
  const KvPageLayout layout =
      KvPageLayout::make(options.format, options.head_dim, options.page_tokens);
  const int32_t heads = options.layers * options.kv_heads;
  const int64_t context_pages = heads * div_ceil(options.context, layout.capacity);
  const int64_t pages =
      options.bytes == 0 ? options.slots * context_pages : options.bytes / layout.page_bytes;
  if (pages < context_pages) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV memory of ", options.bytes, " bytes holds ", pages, " pages of ", layout.page_bytes,
        " bytes; one sequence of ", options.context, " tokens needs ", context_pages, " (",
        context_pages * layout.page_bytes, " bytes): give more memory or a shorter context"));
  }
  if (pages > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV memory of ", pages * layout.page_bytes, " bytes is ", pages,
                     " pages, more than page ids can name: use larger pages"));
  }
  const KvArenaShape shape{.layout = layout,
                           .pages = static_cast<int32_t>(pages),
                           .slots = options.slots,
                           .layers = options.layers,
                           .kv_heads = options.kv_heads,
                           .context = options.context};
  std::unique_ptr<KvArena> arena = KvArena::make(shape);
  if (arena == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system refused ", shape.arena_bytes(), " bytes of KV memory"));
  }
  return std::unique_ptr<KvCache>(new KvCache(options, std::move(arena), backend, stream));
}

KvCache::KvCache(const KvCacheOptions& options, std::unique_ptr<KvArena> arena,
                 const Backend& backend, Stream stream)
    : arena_(std::move(arena)),
      backend_(backend),
      stream_(stream),
      heads_(options.layers * options.kv_heads),
      free_(arena_->shape().pages),
      slots_(static_cast<size_t>(options.slots)),
      shares_(static_cast<size_t>(options.slots)) {
  for (int32_t slot = options.slots; slot > 0; --slot) {
    closed_slots_.push_back(slot - 1);
  }
  changes_.reserve(static_cast<size_t>(options.slots));
}

int32_t KvCache::open_slot() {
  TESSERA_CHECK(!closed_slots_.empty(), "every slot is open");
  const int32_t slot = closed_slots_.back();
  closed_slots_.pop_back();
  TESSERA_CHECK(!slots_[static_cast<size_t>(slot)].open, "a slot is opened twice");
  slots_[static_cast<size_t>(slot)] = {.open = true};
  return slot;
}

void KvCache::reserve(std::span<const KvReservation> reservations) {
  changes_.clear();
  for (const KvReservation& wanted : reservations) {
    const int32_t before = tokens_of(wanted.slot);
    TESSERA_CHECK(before <= wanted.tokens && wanted.tokens <= arena_->shape().context,
                  "a reservation shrinks or exceeds the context");
    slots_[static_cast<size_t>(wanted.slot)].tokens = wanted.tokens;
    const KvRowResize change{wanted.slot, page_count(budget(), before),
                             page_count(budget(), wanted.tokens)};
    free_ -= int64_t{heads_} * (change.pages_after - change.pages_before);
    if (change.pages_after > change.pages_before) {
      changes_.push_back(change);
    }
  }
  resize();
}

void KvCache::fork(std::span<const KvRowFork> forks) {
  if (forks.empty()) {
    return;
  }
  for (const KvRowFork& fork : forks) {
    TESSERA_CHECK(tokens_of(fork.target) == 0, "a fork into a slot that holds pages");
    TESSERA_CHECK(fork.tokens > 0 && fork.tokens <= tokens_of(fork.source),
                  "a fork of more tokens than there are");
    share(fork);
    slots_[static_cast<size_t>(fork.target)].tokens = fork.tokens;
    free_ -= budget().pages_for(fork.tokens) - budget().full_pages(fork.tokens);
  }
  TESSERA_CHECK(free_ >= 0, "forks take more pages than are free");
  backend_.kv_fork({arena_->pool(), arena_->view(), forks}, stream_);
}

void KvCache::share(const KvRowFork& fork) {
  const int32_t row_pages = fork.tokens / layout().capacity;
  if (row_pages == 0) {
    return;
  }
  int32_t& share = slots_[static_cast<size_t>(fork.source)].share;
  if (share == kNoShare) {
    const auto unused = std::find_if(shares_.begin(), shares_.end(),
                                     [](const Share& candidate) { return candidate.owners == 0; });
    share = static_cast<int32_t>(unused - shares_.begin());
    *unused = {.owners = 1, .row_pages = row_pages};
  }
  Share& shared = shares_[static_cast<size_t>(share)];
  TESSERA_CHECK(shared.row_pages == row_pages, "forks of one source share other pages");
  ++shared.owners;
  slots_[static_cast<size_t>(fork.target)].share = share;
}

int32_t KvCache::unshare(int32_t slot) {
  const int32_t share = slots_[static_cast<size_t>(slot)].share;
  if (share == kNoShare) {
    return 0;
  }
  Share& shared = shares_[static_cast<size_t>(share)];
  return --shared.owners > 0 ? shared.row_pages : 0;
}

void KvCache::release(std::span<const int32_t> slots) {
  changes_.clear();
  for (const int32_t slot : slots) {
    const KvRowResize change{slot, page_count(budget(), tokens_of(slot)), 0};
    free_ += int64_t{heads_} * (change.pages_before - unshare(slot));
    slots_[static_cast<size_t>(slot)] = {};
    closed_slots_.push_back(slot);
    if (change.pages_before > 0) {
      changes_.push_back(change);
    }
  }
  resize();
}

void KvCache::resize() {
  if (changes_.empty()) {
    return;
  }
  TESSERA_CHECK(free_ >= 0, "more pages are reserved than are free");
  TESSERA_CHECK(free_ <= pages_total(), "more pages are released than there are");
  backend_.kv_resize({arena_->pool(), changes_}, stream_);
}

int32_t KvCache::tokens_of(int32_t slot) const {
  TESSERA_CHECK(slot >= 0 && slot < arena_->shape().slots, "no such slot");
  TESSERA_CHECK(slots_[static_cast<size_t>(slot)].open, "the slot is closed");
  return slots_[static_cast<size_t>(slot)].tokens;
}

void KvCache::check_integrity() const {
  arena_->check_integrity();
  int64_t held = 0;
  for (int32_t slot = 0; slot < arena_->shape().slots; ++slot) {
    const int64_t pages = budget().pages_for(slots_[static_cast<size_t>(slot)].tokens);
    TESSERA_CHECK(arena_->slot_pages(slot) == pages, "a slot's pages are not what it was given");
    held += pages;
  }
  for (const Share& share : shares_) {
    held -= share.owners > 1 ? int64_t{heads_} * share.row_pages * (share.owners - 1) : 0;
  }
  TESSERA_CHECK(arena_->free_pages() == free_, "free pages differ from the host's total");
  TESSERA_CHECK(free_ + held == pages_total(), "free and held pages are not all pages");
}

}  // namespace tessera
