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
  const int64_t scratch_bytes =
      std::max(shape.marks ? backend.kv_compress_scratch_bytes(arena->view(), stream) : 0,
               shape.unit_tokens > 0 ? backend.kv_demote_scratch_bytes(arena->view(), stream) : 0);
  TESSERA_ASSIGN_OR_RETURN(AlignedMemory scratch, AlignedMemory::allocate(scratch_bytes, backend));
  return std::unique_ptr<KvCache>(
      new KvCache(options, {std::move(arena), std::move(scratch)}, backend, stream));
}

KvCache::KvCache(const KvCacheOptions& options, Memory memory, const Backend& backend,
                 Stream stream)
    : preset_(options.preset),
      query_heads_(options.query_heads),
      window_(options.window),
      arena_(std::move(memory.arena)),
      scratch_(std::move(memory.scratch)),
      backend_(backend),
      stream_(stream),
      ranks_(options.ranks),
      heads_(static_cast<int32_t>(arena_->shape().slot_rows())),
      slots_(static_cast<size_t>(arena_->shape().slots)) {
  for (int32_t slot = shape().slots; slot > 0; --slot) {
    closed_slots_.push_back(slot - 1);
  }
  if (shape().unit_tokens > 0) {
    std::vector<uint8_t> ladder;
    for (const KvFormat format : options.ladder) {
      const auto place = std::find(shape().formats.begin(), shape().formats.end(), format);
      ladder.push_back(static_cast<uint8_t>(place - shape().formats.begin()));
    }
    prefixes_ = std::make_unique<PrefixCache>(*arena_, ladder, backend, stream, scratch_.bytes());
  }
  grown_.reserve(slots_.size());
  for (const KvFormat format : shape().formats) {
    format_pages_.push_back({format, 0});
  }
  uneven_slots_.reserve(slots_.size());
  if (shape().marks) {
    compressions_.reserve(slots_.size());
    compressed_.resize(slots_.size());
    own_totals_.reserve(3 + 2 * slots_.size());
    all_totals_.reserve(static_cast<size_t>(ranks()) * own_totals_.capacity());
  }
}

absl::Status KvCache::check(const KvPolicy& policy) const {
  TESSERA_RETURN_IF_ERROR(
      check_policy(policy, {shape().head_dim, query_heads_ / shape().kv_heads, window_, ranks()}));
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
  if (policy.needs_marks() && !shape().marks) {
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

int32_t KvCache::closed_slot() {
  TESSERA_CHECK(!closed_slots_.empty(), "every slot is open");
  const int32_t slot = closed_slots_.back();
  closed_slots_.pop_back();
  TESSERA_CHECK(!slots_[static_cast<size_t>(slot)].open, "a slot is opened twice");
  return slot;
}

int32_t KvCache::open_slot(const KvPolicy& policy, int32_t prompt_tokens) {
  const int32_t slot = closed_slot();
  slots_[static_cast<size_t>(slot)] = {.open = true,
                                       .policy = share_of(policy),
                                       .tiers = tiers_of(policy),
                                       .prompt_tokens = prompt_tokens};
  return slot;
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
  grown_.clear();
  int64_t growth = 0;
  for (const KvReservation& wanted : reservations) {
    Slot& slot = open(wanted.slot);
    TESSERA_CHECK(slot.tokens <= wanted.tokens && wanted.tokens <= shape().context,
                  "a reservation shrinks or exceeds the context");
    const int32_t groups = wanted.tokens / kKvGroup - slot.tokens / kKvGroup;
    KvDemand demanded = demand(wanted.slot);
    demanded.compresses = false;
    const int64_t pages = demanded.growth(slot.tokens, wanted.tokens - slot.tokens);
    slot.tokens = wanted.tokens;
    slot.high_pages += pages;
    growth += pages;
    if (groups > 0) {
      grown_.push_back({wanted.slot, slot.tiers, groups * kKvGroup});
    }
  }
  if (grown_.empty()) {
    return;
  }
  make_room(growth);
  const int64_t free = free_pages();
  TESSERA_CHECK(growth <= free, "more pages are reserved than are free");
  backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = grown_}, stream_);
  TESSERA_CHECK(free_pages() >= free - growth, "rows grew by more pages than were planned");
  uneven_slots_.clear();
  for (const KvGrowth& grown : grown_) {
    if (open(grown.slot).compressed) {
      count_rows(grown.slot);
      uneven_slots_.push_back(grown.slot);
    }
  }
  if (!uneven_slots_.empty()) {
    agree(uneven_slots_);
  }
  count_format_pages();
}

void KvCache::release(std::span<const int32_t> slots) {
  if (slots.empty()) {
    return;
  }
  bool uneven = false;
  for (const int32_t slot : slots) {
    uneven = uneven || open(slot).compressed;
    open(slot) = {};
    if (prefixes_ != nullptr) {
      prefixes_->let_go(slot);
    }
    closed_slots_.push_back(slot);
  }
  backend_.kv_resize({.pool = arena_->pool(), .released = slots, .grown = {}}, stream_);
  if (uneven) {
    agree({});
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
    Slot& source = open(copy.source);
    Slot& target = open(copy.target);
    TESSERA_CHECK(target.tokens == 0, "a fork into a slot that holds something");
    TESSERA_CHECK(target.policy == source.policy && !source.policy.is_lossy(),
                  "a fork between policies, or of what is compressed");
    TESSERA_CHECK(copy.tokens >= 0 && copy.tokens <= source.tokens,
                  "a fork of more tokens than there are");
    TESSERA_CHECK(copy.tokens % kKvGroup == 0 || copy.tokens / kKvGroup == source.tokens / kKvGroup,
                  "a fork of an open group that has closed");
    const KvDemand demand = this->demand(copy.source);
    if (prefixes_ != nullptr) {
      prefixes_->fork(copy.source, copy.target, copy.tokens);
    }
    target.tiers = source.tiers;
    target.low_tokens = source.low_tokens;
    target.low_pages = source.low_pages;
    target.tokens = copy.tokens;
    target.high_pages = demand.pages_for(copy.tokens);
    target.shared_pages = demand.full_pages(copy.tokens);
    source.shared_pages = std::max(source.shared_pages, target.shared_pages);
    source.family = source.family != 0 ? source.family : ++last_family_;
    target.family = source.family;
    growth += target.high_pages - target.shared_pages;
    forks_.push_back({copy.source, copy.target, source.tiers, copy.tokens / kKvGroup * kKvGroup});
  }
  make_room(growth);
  const int64_t free = free_pages();
  TESSERA_CHECK(growth <= free, "forks take more pages than are free");
  backend_.kv_fork({.pool = arena_->pool(), .forks = forks_}, stream_);
  TESSERA_CHECK(free_pages() == free - growth, "forks took other pages than were planned");
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

void KvCache::compress(std::span<const int32_t> slots) {
  compressions_.clear();
  for (const int32_t index : slots) {
    const Slot& slot = open(index);
    if (wants_compression(slot)) {
      compressions_.push_back({.slot = index,
                               .tiers = slot.tiers,
                               .policy = slot.policy,
                               .tokens = slot.tokens,
                               .prompt_tokens = slot.prompt_tokens,
                               .judged = slot.judged,
                               .pool = !slot.compressed});
    }
  }
  if (compressions_.empty()) {
    return;
  }
  make_room(heads_ * std::ssize(compressions_));  // a row may need a page before it frees one
  const std::span<KvCompressed> results = std::span(compressed_).first(compressions_.size());
  backend_.kv_compress({arena_->pool(), compressions_, results, scratch_.bytes()}, stream_);
  uneven_slots_.clear();
  for (size_t i = 0; i < compressions_.size(); ++i) {
    Slot& slot = open(compressions_[i].slot);
    slot.compressed = true;
    slot.handed_over = false;
    slot.groups = slot.tokens / kKvGroup;
    slot.judged = std::max(slot.judged, compressions_[i].judged_after());
    count_rows(compressions_[i].slot);
    uneven_slots_.push_back(compressions_[i].slot);
  }
  agree(uneven_slots_);
  count_changes(results);
  count_format_pages();
}

// ---- away and back

SavedKv KvCache::save(int32_t slot) const {
  const Slot& from = open(slot);
  SavedKv saved;
  saved.slot_ = from;
  saved.usage_ = usage(slot);
  saved.bytes_.resize(static_cast<size_t>(kv_image_bytes(view(), from.pages(), from.tokens)));
  backend_.kv_save({arena_->pool(), {slot, from.tiers, from.tokens}, saved.bytes_}, stream_);
  return saved;
}

int32_t KvCache::restore(const SavedKv& saved) {
  make_room(saved.pages());
  TESSERA_CHECK(saved.pages() <= free_pages(), "more pages are restored than are free");
  const int32_t slot = closed_slot();
  Slot& to = slots_[static_cast<size_t>(slot)];
  to = saved.slot_;
  // The op reads the image alone.
  const std::span<std::byte> bytes(const_cast<std::byte*>(saved.bytes_.data()),
                                   saved.bytes_.size());
  backend_.kv_load({arena_->pool(), {slot, to.tiers, to.tokens}, bytes}, stream_);
  agree({});
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

KvDemand KvCache::demand(int32_t slot) const {
  const Slot& of = open(slot);
  KvDemand demand = this->demand(of.policy, of.prompt_tokens);
  demand.low_tokens = of.low_tokens;
  demand.uneven = of.compressed;
  demand.compresses =
      demand.compresses && (!of.compressed || of.handed_over || of.policy.compress_generated);
  return demand;
}

KvDemand KvCache::demand(const SavedKv& saved) const {
  KvDemand demand = this->demand(saved.slot_.policy, saved.slot_.prompt_tokens);
  demand.uneven = true;
  demand.restore = saved.pages();
  return demand;
}

int64_t KvCache::slot_bytes(int32_t slot) const {
  return all_pages(open(slot)) * shape().page_bytes + ranks() * shape().slot_bytes();
}

KvUsage KvCache::usage(int32_t slot) const {
  const Slot& of = open(slot);
  KvUsage usage{.bytes = slot_bytes(slot),
                .f16_bytes = int64_t{ranks()} * heads_ * of.tokens * 2 * shape().head_dim * 2,
                .kept = {}};
  int64_t high = 0;
  int64_t low = 0;
  const std::span<const KvRow> rows = all_rows(slot);
  for (const KvRow& row : rows) {
    high += row.high;
    low += row.low;
    if (of.policy.is_lossy()) {
      usage.kept.push_back(row.high + row.low + of.tokens % kKvGroup);
    }
  }
  const auto heads = static_cast<double>(rows.size());
  usage.high = static_cast<double>(high) / heads + of.tokens % kKvGroup;
  usage.low = static_cast<double>(low) / heads;
  usage.dropped = of.tokens - usage.high - usage.low;
  return usage;
}

void KvCache::count_rows(int32_t slot) {
  Slot& of = open(slot);
  const int64_t low_capacity = shape().layout(of.tiers.low).capacity;
  of.high_pages = 0;
  of.low_pages = 0;
  for (const KvRow& row : arena_->slot_rows(slot)) {
    // kv_resize gave the row room for its open group's end; compression leaves nothing unused.
    const int64_t low = div_ceil(row.low, low_capacity);
    of.low_pages += low;
    of.high_pages -= low;
  }
  of.high_pages += arena_->slot_pages(slot);
}

void KvCache::count_format_pages() {
  for (KvFormatPages& format : format_pages_) {
    format.of_one = 0;
    format.of_several = 0;
  }
  const auto cached_high = [&](size_t slot) {
    return prefixes_ == nullptr ? 0 : prefixes_->cached_high_pages(static_cast<int32_t>(slot), 0);
  };
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    // A family's shared pages are those of the one that shares most, counted with the first of it.
    bool first = slot.family != 0;
    int64_t shared = 0;
    int64_t cached = 0;
    int32_t members = 0;
    for (size_t j = 0; slot.family != 0 && j < slots_.size(); ++j) {
      if (slots_[j].family == slot.family) {
        first = first && j >= i;
        shared = std::max(shared, slots_[j].shared_pages);
        cached = std::max(cached, cached_high(j));
        ++members;
      }
    }
    KvFormatPages& high = format_pages_[slot.tiers.high];
    high.of_one += slot.high_pages - std::max(slot.shared_pages, cached_high(i));
    (members > 1 ? high.of_several : high.of_one) +=
        first ? std::max<int64_t>(0, shared - cached) : 0;
    format_pages_[slot.tiers.low].of_one +=
        slot.low_pages -
        (prefixes_ == nullptr ? 0 : prefixes_->cached_low_pages(static_cast<int32_t>(i)));
  }
  if (prefixes_ != nullptr) {
    prefixes_->add_pages(format_pages_);
  }
  add_other_ranks(format_pages_);
}

void KvCache::check_integrity() const {
  arena_->check_integrity();
  if (prefixes_ != nullptr) {
    prefixes_->check_integrity();
  }
  for (int32_t slot = 0; slot < shape().slots; ++slot) {
    TESSERA_CHECK(arena_->slot_pages(slot) == slots_[static_cast<size_t>(slot)].pages(),
                  "a slot's pages are not what it was given");
  }
  int64_t used = 0;
  for (const KvFormatPages& format : format_pages_) {
    used += format.of_one + format.of_several;
  }
  const int64_t free = free_pages() * ranks() + all_surplus_;
  TESSERA_CHECK(used + free <= pages_total() * ranks(), "pages by format are more than are in use");
}

}  // namespace tessera
