#include "engine/kv/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/kv_page_size.h"
#include "models/status_macros.h"

namespace tessera {
namespace {

absl::Status check_format(KvFormat format) {
  return is_supported(format) ? absl::OkStatus()
                              : absl::InvalidArgumentError(absl::StrCat(
                                    "there are no kernels for a KV format of ", format.key_bits,
                                    " key and ", format.value_bits, " value bits"));
}

// All but the number of pages.
KvArenaShape shape_of(const KvCacheOptions& options) {
  KvArenaShape shape{.formats = {options.preset.high},
                     .head_dim = options.head_dim,
                     .slots = options.slots,
                     .layers = options.layers,
                     .kv_heads = options.kv_heads,
                     .context = options.context};
  const bool two_tiers = options.preset.low != options.preset.high;
  std::vector<KvFormatUse> uses{{options.preset.high, !two_tiers}};
  if (two_tiers) {
    shape.formats.push_back(options.preset.low);
    uses.push_back({options.preset.low, false});
  }
  shape.page_bytes = best_page_bytes(uses, options.head_dim);
  return shape;
}

absl::StatusOr<int32_t> count_pages(const KvCacheOptions& options, const KvArenaShape& shape) {
  const int64_t context_pages = shape.slot_rows() * shape.row_pages();
  const int64_t fixed = shape.slots * shape.slot_bytes();
  const int64_t pages = options.bytes == 0
                            ? shape.slots * context_pages
                            : std::max<int64_t>(0, options.bytes - fixed) / shape.cost_of_page();
  if (pages < context_pages) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV memory of ", options.bytes, " bytes holds ", pages, " pages of ", shape.page_bytes,
        " bytes beside the windows and tables of ", shape.slots, " sequences (", fixed,
        " bytes); one sequence of ", shape.context, " tokens needs ", context_pages, " pages, so ",
        fixed + context_pages * shape.cost_of_page(),
        " bytes in all: give more memory, a shorter context or fewer sequences"));
  }
  if (pages > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("KV memory of ", pages * shape.cost_of_page(),
                                                   " bytes is ", pages,
                                                   " pages, more than page ids can name"));
  }
  return static_cast<int32_t>(pages);
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::create(const KvCacheOptions& options,
                                                         const Backend& backend, Stream stream) {
  for (const KvFormat format : {options.preset.high, options.preset.low}) {
    TESSERA_RETURN_IF_ERROR(check_format(format));
  }
  if ((options.preset.high == kKvF32) != (options.preset.low == kKvF32)) {
    return absl::InvalidArgumentError("f32 goes with no other format of the KV cache");
  }
  KvArenaShape shape = shape_of(options);
  TESSERA_ASSIGN_OR_RETURN(shape.pages, count_pages(options, shape));
  std::unique_ptr<KvArena> arena = KvArena::make(shape);
  if (arena == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system refused ", shape.total_bytes(), " bytes of KV memory"));
  }
  const KvTiers tiers{0, static_cast<uint8_t>(shape.formats.size() - 1)};
  return std::unique_ptr<KvCache>(new KvCache(std::move(arena), tiers, backend, stream));
}

KvCache::KvCache(std::unique_ptr<KvArena> arena, KvTiers tiers, const Backend& backend,
                 Stream stream)
    : arena_(std::move(arena)),
      tiers_(tiers),
      backend_(backend),
      stream_(stream),
      heads_(static_cast<int32_t>(arena_->shape().slot_rows())),
      slots_(static_cast<size_t>(arena_->shape().slots)) {
  for (int32_t slot = shape().slots; slot > 0; --slot) {
    closed_slots_.push_back(slot - 1);
  }
  grown_.reserve(slots_.size());
  forks_.reserve(slots_.size());
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
  grown_.clear();
  int64_t growth = 0;
  for (const KvReservation& wanted : reservations) {
    Slot& slot = open(wanted.slot);
    TESSERA_CHECK(slot.tokens <= wanted.tokens && wanted.tokens <= shape().context,
                  "a reservation shrinks or exceeds the context");
    const int32_t groups = wanted.tokens / kKvGroup - slot.tokens / kKvGroup;
    const int64_t pages = budget().pages_for(wanted.tokens) - budget().pages_for(slot.tokens);
    slot.tokens = wanted.tokens;
    slot.pages += pages;
    growth += pages;
    if (groups > 0) {
      grown_.push_back({wanted.slot, tiers_, groups * kKvGroup});
    }
  }
  const int64_t free = free_pages();
  TESSERA_CHECK(growth <= free, "more pages are reserved than are free");
  if (!grown_.empty()) {
    backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = grown_}, stream_);
  }
  TESSERA_CHECK(free_pages() == free - growth, "rows grew by other pages than were planned");
}

void KvCache::fork(std::span<const KvCopy> copies) {
  if (copies.empty()) {
    return;
  }
  forks_.clear();
  int64_t growth = 0;
  for (const KvCopy& copy : copies) {
    const Slot& source = open(copy.source);
    Slot& target = open(copy.target);
    TESSERA_CHECK(target.tokens == 0, "a fork into a slot that holds something");
    TESSERA_CHECK(copy.tokens >= 0 && copy.tokens <= source.tokens,
                  "a fork of more tokens than there are");
    TESSERA_CHECK(copy.tokens % kKvGroup == 0 || copy.tokens / kKvGroup == source.tokens / kKvGroup,
                  "a fork of an open group that has closed");
    target.tokens = copy.tokens;
    target.pages = budget().pages_for(copy.tokens);
    growth += target.pages - budget().full_pages(copy.tokens);
    forks_.push_back({copy.source, copy.target, tiers_, copy.tokens / kKvGroup * kKvGroup});
  }
  const int64_t free = free_pages();
  TESSERA_CHECK(growth <= free, "forks take more pages than are free");
  backend_.kv_fork({.pool = arena_->pool(), .forks = forks_}, stream_);
  TESSERA_CHECK(free_pages() == free - growth, "forks took other pages than were planned");
}

void KvCache::release(std::span<const int32_t> slots) {
  if (slots.empty()) {
    return;
  }
  for (const int32_t slot : slots) {
    open(slot) = {};
    closed_slots_.push_back(slot);
  }
  backend_.kv_resize({.pool = arena_->pool(), .released = slots, .grown = {}}, stream_);
}

const KvCache::Slot& KvCache::open(int32_t slot) const {
  TESSERA_CHECK(slot >= 0 && slot < shape().slots, "no such slot");
  TESSERA_CHECK(slots_[static_cast<size_t>(slot)].open, "the slot is closed");
  return slots_[static_cast<size_t>(slot)];
}

KvTiers KvCache::tiers(int32_t slot) const {
  open(slot);  // every sequence has the same, so far as it is one
  return tiers_;
}

int64_t KvCache::slot_bytes(int32_t slot) const {
  return open(slot).pages * shape().page_bytes + shape().slot_bytes();
}

void KvCache::check_integrity() const {
  arena_->check_integrity();
  for (int32_t slot = 0; slot < shape().slots; ++slot) {
    TESSERA_CHECK(arena_->slot_pages(slot) == slots_[static_cast<size_t>(slot)].pages,
                  "a slot's pages are not what it was given");
  }
}

}  // namespace tessera
