#include "engine/kv/kv_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "models/status_macros.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::create(const KvCacheOptions& options,
                                                         const Backend& backend, Stream stream) {
  TESSERA_RETURN_IF_ERROR(check_options(options));
  TESSERA_ASSIGN_OR_RETURN(const KvArenaShape shape, shape_of(options));
  for (const KvFormat format : shape.formats) {
    if (backend.serves_pages != nullptr && !backend.serves_pages(format, shape.head_dim)) {
      return absl::InvalidArgumentError(
          absl::StrCat("KV cache: the backend ", backend.name, " has no kernels for pages of ",
                       name_of(format), " with a head dimension of ", shape.head_dim));
    }
  }
  std::unique_ptr<KvArena> arena = KvArena::make(shape, backend.memory, stream);
  if (arena == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system refused ", shape.total_bytes(), " bytes of KV memory"));
  }
  const int64_t scratch_bytes = std::max(
      shape.token_scores ? backend.kv_compress_scratch_bytes(arena->view(), stream) : 0,
      shape.prefix_block_tokens > 0 ? backend.kv_demote_scratch_bytes(arena->view(), stream) : 0);
  TESSERA_ASSIGN_OR_RETURN(AlignedMemory scratch, AlignedMemory::allocate(scratch_bytes, backend));
  return std::unique_ptr<KvCache>(
      new KvCache(options, {std::move(arena), std::move(scratch)}, backend, stream));
}

KvCache::KvCache(const KvCacheOptions& options, Memory memory, const Backend& backend,
                 Stream stream)
    : preset_(options.preset),
      query_heads_(options.query_heads),
      sliding_window_(options.sliding_window),
      arena_(std::move(memory.arena)),
      scratch_(std::move(memory.scratch)),
      backend_(backend),
      stream_(stream),
      ranks_(options.ranks),
      heads_(static_cast<int32_t>(arena_->shape().slot_rows())),
      slots_(static_cast<size_t>(arena_->shape().slots)),
      free_pages_(arena_->shape().pages),
      families_(arena_->shape().slots) {
  for (int32_t slot = shape().slots; slot > 0; --slot) {
    free_slots_.push_back(slot - 1);
  }
  if (shape().prefix_block_tokens > 0) {
    std::vector<uint8_t> ladder;
    for (const KvFormat format : options.ladder) {
      const auto place = std::find(shape().formats.begin(), shape().formats.end(), format);
      ladder.push_back(static_cast<uint8_t>(place - shape().formats.begin()));
    }
    prefixes_ = std::make_unique<PrefixCache>(*arena_, ladder, backend, stream, scratch_.bytes());
  }
  released_.reserve(slots_.size());
  grown_.reserve(slots_.size());
  planned_.reserve(slots_.size());
  taken_.reserve(slots_.size());
  for (const KvFormat format : shape().formats) {
    format_pages_.push_back({format, 0});
  }
  uneven_slots_.reserve(slots_.size());
  if (shape().token_scores) {
    compressions_.reserve(slots_.size());
    compressed_.resize(slots_.size());
    own_totals_.reserve(3 + 2 * slots_.size());
    all_totals_.reserve(static_cast<size_t>(ranks()) * own_totals_.capacity());
  }
}

KvCache::~KvCache() {
  TESSERA_CHECK(free_slots_.size() == slots_.size(), "a slot outlives its cache");
}

absl::Status KvCache::check(const KvPolicy& policy) const {
  TESSERA_RETURN_IF_ERROR(check_policy(
      policy, {shape().head_dim, query_heads_ / shape().kv_heads, sliding_window_, ranks()}));
  for (const KvFormat format : {policy.high, policy.low}) {
    if (std::find(shape().formats.begin(), shape().formats.end(), format) ==
        shape().formats.end()) {
      std::string served;
      for (const KvFormat known : shape().formats) {
        absl::StrAppend(&served, served.empty() ? "" : ", ", name_of(known));
      }
      return absl::InvalidArgumentError(absl::StrCat("KV policy: the format ", name_of(format),
                                                     " is not served here, but ", served));
    }
  }
  if (policy.needs_token_scores() && !shape().token_scores) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV policy: the rule ", std::string(name_of(policy.rule)),
                     " needs scores beside the pages, which this server does not keep: no preset "
                     "with such a rule was named at its start"));
  }
  if (policy.key_score == KvKeyScore::output_aware && !shape().query_sums) {
    return absl::InvalidArgumentError(
        "KV policy: key_score output_aware needs sums of queries beside the pages, which this "
        "server does not keep: no preset that prunes keys behind a dense tier was named at its "
        "start");
  }
  return absl::OkStatus();
}

// ---- slots

KvSlot KvCache::take_slot(Slot state) {
  TESSERA_CHECK(!free_slots_.empty(), "every slot is open");
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  TESSERA_CHECK(!slots_[static_cast<size_t>(slot)].open, "a slot is opened twice");
  slots_[static_cast<size_t>(slot)] = state;
  return {*this, slot};
}

KvSlot KvCache::open_slot(const KvPolicy& policy, int32_t prompt_tokens) {
  return take_slot({.open = true,
                    .policy = share_of(policy),
                    .tiers = tiers_of(policy),
                    .prompt_tokens = prompt_tokens});
}

int32_t KvCache::index_of(const KvSlot& slot) const {
  TESSERA_CHECK(slot.cache_ == this, "a released slot, or one of another cache");
  return slot.index_;
}

const KvCache::Slot& KvCache::open(int32_t slot) const {
  TESSERA_CHECK(slot >= 0 && slot < shape().slots, "no such slot");
  TESSERA_CHECK(slots_[static_cast<size_t>(slot)].open, "the slot is closed");
  return slots_[static_cast<size_t>(slot)];
}

KvTiers KvCache::tiers_of(const KvPolicy& policy) const {
  const auto place = [&](KvFormat format) {
    const auto found = std::find(shape().formats.begin(), shape().formats.end(), format);
    TESSERA_CHECK(found != shape().formats.end(), "a policy that was not checked");
    return static_cast<uint8_t>(found - shape().formats.begin());
  };
  return {place(policy.high), place(policy.low)};
}

int32_t KvCache::page_tokens(const KvPolicy& policy) const {
  return shape().layout(tiers_of(policy).high).capacity;
}

void KvCache::reserve(std::span<const KvReservation> reservations) {
  reconcile_growth();
  grown_.clear();
  planned_.clear();
  int64_t growth = 0;
  bool uneven = false;
  for (const KvReservation& wanted : reservations) {
    const int32_t index = index_of(wanted.slot);
    Slot& slot = open(index);
    TESSERA_CHECK(slot.tokens <= wanted.tokens && wanted.tokens <= shape().context,
                  "a reservation shrinks or exceeds the context");
    const int32_t groups = wanted.tokens / kKvGroup - slot.tokens / kKvGroup;
    KvDemand demanded = demand_of(slot);
    demanded.compresses = false;
    const int64_t pages = demanded.growth(slot.tokens, wanted.tokens - slot.tokens);
    slot.tokens = wanted.tokens;
    slot.high_pages += pages;
    if (slot.compressed) {
      count_growth(slot, pages);
    }
    growth += pages;
    if (groups > 0) {
      grown_.push_back({index, slot.tiers, groups * kKvGroup});
      planned_.push_back(pages);
      uneven = uneven || slot.compressed;
    }
  }
  if (grown_.empty()) {
    return;
  }
  make_room(growth);
  TESSERA_CHECK(growth <= free_pages_, "more pages are reserved than are free");
  free_pages_ -= growth;
  taken_.assign(uneven ? grown_.size() : 0, kUnknown);
  backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = grown_, .taken = taken_},
                     stream_);
  count_format_pages();
}

void KvCache::reconcile_growth() {
  if (taken_.empty()) {
    return;
  }
  if (taken_.front() == kUnknown) {  // the step computed no logits, so the host has not waited yet
    arena_->wait();
  }
  uneven_slots_.clear();
  for (size_t i = 0; i < taken_.size(); ++i) {
    Slot& slot = open(grown_[i].slot);
    const int64_t unused = planned_[i] - taken_[i];
    TESSERA_CHECK(unused >= 0 && (unused == 0 || slot.compressed),
                  "rows grew by other pages than were planned");
    slot.high_pages -= unused;
    free_pages_ += unused;
    if (slot.compressed) {
      uneven_slots_.push_back(grown_[i].slot);
    }
  }
  taken_.clear();
  synchronize_totals(uneven_slots_);
}

void KvCache::release(KvSlot&& slot) {
  const int32_t slots[] = {index_of(slot)};
  slot.cache_ = nullptr;
  close(slots);
}

void KvCache::release(std::vector<KvSlot>& slots) {
  released_.clear();
  for (KvSlot& slot : slots) {
    released_.push_back(index_of(slot));
    slot.cache_ = nullptr;
  }
  slots.clear();
  if (!released_.empty()) {
    close(released_);
  }
}

void KvCache::close(std::span<const int32_t> slots) {
  reconcile_growth();
  bool uneven = false;
  for (const int32_t slot : slots) {
    uneven = uneven || open(slot).compressed;
    free_pages_ += pages_alone(slot);
    families_.leave(slot);
    slots_[static_cast<size_t>(slot)] = {};
    if (prefixes_ != nullptr) {
      prefixes_->release(slot);
    }
    free_slots_.push_back(slot);
  }
  backend_.kv_resize({.pool = arena_->pool(), .released = slots, .grown = {}}, stream_);
  if (uneven) {
    synchronize_totals({});
  }
  count_format_pages();
}

void KvCache::fork(std::span<const KvCopy> copies) {
  if (copies.empty()) {
    return;
  }
  forks_.clear();
  int64_t growth = 0;
  for (const KvCopy& copy : copies) {
    const int32_t from = index_of(copy.source);
    const int32_t to = index_of(copy.target);
    Slot& source = open(from);
    Slot& target = open(to);
    TESSERA_CHECK(target.tokens == 0, "a fork into a slot that holds something");
    TESSERA_CHECK(target.policy == source.policy && !source.policy.is_lossy(),
                  "a fork between different policies, or with a lossy policy");
    TESSERA_CHECK(copy.tokens >= 0 && copy.tokens <= source.tokens,
                  "a fork of more tokens than there are");
    TESSERA_CHECK(copy.tokens % kKvGroup == 0 || copy.tokens / kKvGroup == source.tokens / kKvGroup,
                  "a fork of an open group that has closed");
    const KvDemand demand = demand_of(source);
    if (prefixes_ != nullptr) {
      prefixes_->fork(from, to, copy.tokens);
    }
    target.tiers = source.tiers;
    target.low_tokens = source.low_tokens;
    target.low_pages = source.low_pages;
    target.tokens = copy.tokens;
    target.high_pages = demand.pages_for(copy.tokens);
    families_.fork(from, to, demand.full_pages(copy.tokens));
    growth += target.high_pages - demand.full_pages(copy.tokens);
    forks_.push_back({from, to, source.tiers, copy.tokens / kKvGroup * kKvGroup});
  }
  make_room(growth);
  TESSERA_CHECK(growth <= free_pages_, "forks take more pages than are free");
  free_pages_ -= growth;
  backend_.kv_fork({.pool = arena_->pool(), .forks = forks_}, stream_);
  count_format_pages();
}

// ---- policies

bool KvCache::wants_compression(const Slot& slot) const {
  if (!slot.policy.is_lossy() || slot.tokens < slot.prompt_tokens) {
    return false;
  }
  return !slot.compressed || slot.handed_over ||
         (slot.policy.compress_generated && slot.tokens / kKvGroup > slot.groups);
}

void KvCache::compress(std::span<const KvSlot* const> slots) {
  reconcile_growth();
  compressions_.clear();
  for (const KvSlot* const handle : slots) {
    const int32_t index = index_of(*handle);
    const Slot& slot = open(index);
    if (wants_compression(slot)) {
      compressions_.push_back({.slot = index,
                               .tiers = slot.tiers,
                               .policy = slot.policy,
                               .tokens = slot.tokens,
                               .prompt_tokens = slot.prompt_tokens,
                               .evaluated = slot.evaluated,
                               .pool_scores = !slot.compressed});
    }
  }
  if (compressions_.empty()) {
    return;
  }
  make_room(heads_ * std::ssize(compressions_));  // a row may take a page before it frees one
  const std::span<KvCompressed> results = std::span(compressed_).first(compressions_.size());
  backend_.kv_compress({arena_->pool(), compressions_, results, scratch_.bytes()}, stream_);
  uneven_slots_.clear();
  for (size_t i = 0; i < compressions_.size(); ++i) {
    Slot& slot = open(compressions_[i].slot);
    slot.compressed = true;
    slot.handed_over = false;
    slot.groups = slot.tokens / kKvGroup;
    slot.evaluated = std::max(slot.evaluated, compressions_[i].evaluated_after());
    slot.high_pages = slot.pages() - results[i].pages_freed - results[i].low_pages;
    slot.low_pages = results[i].low_pages;
    free_pages_ += results[i].pages_freed;
    uneven_slots_.push_back(compressions_[i].slot);
  }
  synchronize_totals(uneven_slots_);
  count_changes(results);
  count_format_pages();
}

// ---- swap

SwappedKv KvCache::swap_out(const KvSlot& slot) const {
  const Slot& from = state(slot);
  TESSERA_CHECK(from.compressed, "a slot that can be recomputed is not swapped out");
  SwappedKv swapped;
  swapped.slot_ = from;
  swapped.usage_ = usage(slot);
  swapped.bytes_.resize(static_cast<size_t>(kv_snapshot_bytes(view(), from.pages(), from.tokens)));
  backend_.kv_swap_out({arena_->pool(), {index_of(slot), from.tiers, from.tokens}, swapped.bytes_},
                       stream_);
  return swapped;
}

KvSlot KvCache::swap_in(const SwappedKv& swapped) {
  make_room(swapped.pages());
  TESSERA_CHECK(swapped.pages() <= free_pages_, "more pages are restored than are free");
  free_pages_ -= swapped.slot_.pages();
  KvSlot slot = take_slot(swapped.slot_);
  // The op only reads the snapshot.
  const std::span<std::byte> bytes(const_cast<std::byte*>(swapped.bytes_.data()),
                                   swapped.bytes_.size());
  const Slot& to = state(slot);
  backend_.kv_swap_in({arena_->pool(), {index_of(slot), to.tiers, to.tokens}, bytes}, stream_);
  synchronize_totals({});
  count_format_pages();
  return slot;
}

// ---- totals

KvDemand KvCache::demand(const KvPolicy& policy, int32_t prompt_tokens) const {
  return {.heads = heads_,
          .page_tokens = page_tokens(policy),
          .compresses = policy.has_low_tier(),
          .prompt_tokens = prompt_tokens};
}

KvDemand KvCache::demand_of(const Slot& of) const {
  KvDemand demand = this->demand(of.policy, of.prompt_tokens);
  demand.low_tokens = of.low_tokens;
  demand.uneven = of.compressed;
  demand.compresses =
      demand.compresses && (!of.compressed || of.handed_over || of.policy.compress_generated);
  return demand;
}

KvDemand KvCache::demand(const SwappedKv& swapped) const {
  KvDemand demand = this->demand(swapped.slot_.policy, swapped.slot_.prompt_tokens);
  demand.uneven = true;
  demand.swap_in_pages = swapped.pages();
  return demand;
}

int64_t KvCache::slot_bytes(const KvSlot& slot) const {
  return all_pages(state(slot)) * shape().page_bytes + ranks() * shape().slot_bytes();
}

KvUsage KvCache::usage(const KvSlot& slot) const {
  const Slot& of = state(slot);
  KvUsage usage{.bytes = slot_bytes(slot),
                .f16_bytes = int64_t{ranks()} * heads_ * of.tokens * 2 * shape().head_dim * 2,
                .kept = {}};
  if (!of.compressed) {  // all rows hold the same tokens, so no copy from the backend is needed
    usage.high = of.tokens - of.low_tokens;
    usage.low = of.low_tokens;
    usage.kept.assign(of.policy.is_lossy() ? static_cast<size_t>(ranks() * heads_) : 0, of.tokens);
    return usage;
  }
  int64_t high = 0;
  int64_t low = 0;
  const std::span<const KvRow> rows = all_rows(index_of(slot));
  for (const KvRow& row : rows) {
    high += row.high;
    low += row.low;
    usage.kept.push_back(row.high + row.low + of.tokens % kKvGroup);
  }
  const auto heads = static_cast<double>(rows.size());
  usage.high = static_cast<double>(high) / heads + of.tokens % kKvGroup;
  usage.low = static_cast<double>(low) / heads;
  usage.dropped = of.tokens - usage.high - usage.low;
  return usage;
}

int64_t KvCache::cached_high_pages(int32_t slot) const {
  return prefixes_ == nullptr ? 0 : prefixes_->cached_high_pages(slot, 0);
}

int64_t KvCache::cached_low_pages(int32_t slot) const {
  return prefixes_ == nullptr ? 0 : prefixes_->cached_low_pages(slot);
}

int64_t KvCache::pages_alone(int32_t slot) const {
  const Slot& of = slots_[static_cast<size_t>(slot)];
  return of.high_pages - std::max(families_.shared(slot), cached_high_pages(slot)) + of.low_pages -
         cached_low_pages(slot);
}

// Counts pages by format. A page that several slots share is counted once, with the last slot of
// the family's list that has it.
void KvCache::count_format_pages() {
  for (KvFormatPages& format : format_pages_) {
    format.exclusive = 0;
    format.shared = 0;
  }
  for (int32_t i = 0; i < shape().slots; ++i) {
    const Slot& slot = slots_[static_cast<size_t>(i)];
    const int64_t low = slot.low_pages - cached_low_pages(i);
    const int64_t elsewhere = std::max(families_.shared_with_next(i), cached_high_pages(i));
    KvFormatPages& high = format_pages_[slot.tiers.high];
    high.exclusive += pages_alone(i) - low;
    high.shared += std::max<int64_t>(0, families_.shared_with_previous(i) - elsewhere);
    format_pages_[slot.tiers.low].exclusive += low;
  }
  if (prefixes_ != nullptr) {
    prefixes_->add_pages(format_pages_);
  }
  add_other_ranks(format_pages_);
}

void KvCache::check_integrity() const {
  TESSERA_CHECK(taken_.empty(), "check_integrity inside a step");
  arena_->check_integrity();
  TESSERA_CHECK(free_pages_ == arena_->free_pages(), "free pages differ from their count");
  if (prefixes_ != nullptr) {
    prefixes_->check_integrity();
  }
  for (int32_t slot = 0; slot < shape().slots; ++slot) {
    TESSERA_CHECK(arena_->slot_pages(slot) == slots_[static_cast<size_t>(slot)].pages(),
                  "a slot's pages differ from their count");
  }
  int64_t used = 0;
  for (const KvFormatPages& format : format_pages_) {
    used += format.exclusive + format.shared;
  }
  const int64_t free = free_pages() * ranks() + all_surplus_;
  TESSERA_CHECK(used + free <= pages_total() * ranks(), "pages by format are more than are in use");
}

}  // namespace tessera
