#include "engine/kv/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/kv/rotation.h"

namespace tessera {
namespace {

std::unique_ptr<PrefixCache> make_prefix_cache(const KvCacheOptions& options, KvArena& arena,
                                               std::span<std::byte> scratch, const Backend& backend,
                                               Stream stream) {
  const KvArenaShape& shape = arena.shape();
  if (shape.prefix_block_tokens == 0) {
    return nullptr;
  }
  std::vector<uint8_t> ladder;
  for (const KvFormat format : options.ladder) {
    const auto place = std::find(shape.formats.begin(), shape.formats.end(), format);
    ladder.push_back(static_cast<uint8_t>(place - shape.formats.begin()));
  }
  auto cache = std::make_unique<PrefixCache>(arena, ladder, backend, stream, scratch);
  if (options.section_step.has_value()) {
    const KvPolicy& policy = *options.section_step;
    const int32_t capacity = shape.layout(tiers_of(policy, shape).high).capacity;
    cache->blocks().add_section_step(policy.high, section_pages(policy, capacity));
  }
  if (options.prefix_events != nullptr) {
    const KvPolicy& policy = options.preset.policy;
    const int32_t capacity = shape.layout(tiers_of(policy, shape).high).capacity;
    cache->blocks().report(*options.prefix_events, policy.high, section_pages(policy, capacity));
  }
  return cache;
}

}  // namespace

absl::Status check_served(const Backend& backend, KvFormat format, int32_t head_dim) {
  if (format.rotated && rotation_block(head_dim) < kMinRotationBlock) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV cache: ", name_of(format), " rotates blocks of at least ",
                     kMinRotationBlock, " channels, and a head dimension of ", head_dim,
                     " has blocks of ", rotation_block(head_dim)));
  }
  if (backend.serves_pages != nullptr && !backend.serves_pages(format, head_dim)) {
    return absl::InvalidArgumentError(absl::StrCat("KV cache: the backend ", backend.name,
                                                   " has no kernels for pages of ", name_of(format),
                                                   " with a head dimension of ", head_dim));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::create(const KvCacheOptions& options,
                                                         const Backend& backend, Stream stream) {
  TESSERA_RETURN_IF_ERROR(check_options(options));
  TESSERA_ASSIGN_OR_RETURN(const KvArenaShape shape, shape_of(options));
  if (shape.sketch_bytes > 0 && !backend.selects_tiles) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV cache: the backend ", backend.name,
        " reads all pages; read_share must be 1, so presets such as k8v4-quest have no kernels"));
  }
  if (shape.coded_residuals && !backend.coded_residuals) {
    return absl::InvalidArgumentError(absl::StrCat("KV cache: the backend ", backend.name,
                                                   " has residual buffers of 16 bits only"));
  }
  for (const KvSectionBlock& block : shape.section_blocks) {
    if (weighs_output(block.scorer) && !backend.weighs_output) {
      return absl::InvalidArgumentError(absl::StrCat("KV cache: the backend ", backend.name,
                                                     " has no kernels for the scorer ",
                                                     std::string(name_of(block.scorer))));
    }
  }
  for (const KvFormat format : shape.formats) {
    TESSERA_RETURN_IF_ERROR(check_served(backend, format, shape.head_dim));
  }
  std::unique_ptr<KvArena> arena = KvArena::make(shape, backend.memory, stream);
  if (arena == nullptr || (options.populate && !arena->populate())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system refused ", shape.total_bytes(), " bytes of KV memory"));
  }
  const int64_t scratch_bytes = std::max(
      shape.token_scores ? backend.kv_compress_scratch_bytes(arena->view(), stream) : 0,
      shape.prefix_block_tokens > 0 ? backend.kv_demote_scratch_bytes(arena->view(), stream) : 0);
  TESSERA_ASSIGN_OR_RETURN(AlignedMemory scratch, AlignedMemory::allocate(scratch_bytes, backend));
  std::shared_ptr<SwapRoom> swap_room = SwapRoom::make(swap_room_bytes(shape));
  if (swap_room == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("the system refused ", swap_room_bytes(shape),
                                                     " bytes of memory for swapped-out sequences"));
  }
  return std::unique_ptr<KvCache>(new KvCache(
      options, {std::move(arena), std::move(scratch), std::move(swap_room)}, backend, stream));
}

KvCache::KvCache(const KvCacheOptions& options, Memory memory, const Backend& backend,
                 Stream stream)
    : default_policy_(options.preset.policy),
      section_step_(options.section_step),
      model_(model_of(options)),
      arena_(std::move(memory.arena)),
      scratch_(std::move(memory.scratch)),
      swap_room_(std::move(memory.swap_room)),
      backend_(backend),
      stream_(stream),
      prefix_cache_(make_prefix_cache(options, *arena_, scratch_.bytes(), backend, stream)),
      slots_(shape().slots),
      accounting_(*arena_, slots_, prefix_cache_.get(), options.ranks),
      planning_(default_policy_, shape(), slots_, accounting_, prefix_cache_.get()),
      prefixes_(prefix_cache_.get(), shape(), slots_, accounting_),
      compressor_(*arena_, slots_, backend, stream, scratch_.bytes()),
      growth_(shape().slots) {
  released_.reserve(slots_.all().size());
  passed_.reserve(slots_.all().size());
  compressed_.reserve(slots_.all().size());
}

KvCache::~KvCache() {
  TESSERA_CHECK(slots_.all_free(), "a slot outlives its cache");
}

absl::Status KvCache::check(const KvPolicy& policy) const {
  return check_served(policy, model_, shape());
}

absl::Status KvCache::check_accepted(KvFormat format) const {
  return check_format(format, "cache.accept", shape());
}

KvScoring KvCache::scoring(const KvSlot& slot) const {
  const SlotState& of = slots_.at(slot);
  KvScoring scoring = scoring_of(of.policy, of.prompt_tokens);
  if (of.policy.replays()) {  // the queries behind the section: those of its replay
    const int32_t never = std::numeric_limits<int32_t>::max();
    scoring.begin = of.sections.compresses_next() ? of.sections.next_end() : never;
    scoring.end = never;
    if (shape().section_scores > 0) {
      scoring.section = of.policy.section;
      scoring.token_scores = of.replayed() > 0;
    }
  }
  return scoring;
}

// ---- slots

// A budget in bytes applies to the whole sequence; each rank gets its share of it.
KvSlot KvCache::open_slot(const KvPolicy& policy, int32_t prompt_tokens, float floor) {
  SlotState state{.policy = policy,
                  .tiers = tiers_of(policy, shape()),
                  .prompt_tokens = prompt_tokens,
                  .sections = planning_.demand(policy, prompt_tokens).sections,
                  .floor = floor};
  if (state.policy.keep.is<KeepBudget>() && state.policy.budget().amount.is_bytes()) {
    KvAmount& amount = state.policy.budget().amount;
    amount = KvAmount::of_bytes(amount.bytes() / accounting_.rank_totals().ranks());
  }
  return {*this, slots_.open(state)};
}

KvSlot KvCache::open_replay(const KvMatch& due) {
  TESSERA_CHECK(section_step_.has_value(), "a replay without a section step");
  KvSlot slot = open_slot(*section_step_, prefixes_.tokens_of(due));
  prefixes_.attach_due(slot, due);
  return slot;
}

void KvCache::release(KvSlot&& slot) {
  const int32_t slots[] = {slot.index()};
  slot.cache_ = nullptr;
  close(slots);
}

void KvCache::release(std::vector<KvSlot>& slots) {
  released_.clear();
  for (KvSlot& slot : slots) {
    released_.push_back(slot.index());
    slot.cache_ = nullptr;
  }
  slots.clear();
  if (!released_.empty()) {
    close(released_);
  }
}

void KvCache::close(std::span<const int32_t> slots) {
  settle_growth();
  bool uneven = false;
  for (const int32_t slot : slots) {
    uneven = uneven || slots_.at(slot).compressed;
    accounting_.give_back_slot(slot);
    slots_.close(slot);
    if (prefix_cache_ != nullptr) {
      prefix_cache_->paths().release(slot);
    }
  }
  backend_.kv_resize({.pool = arena_->pool(), .released = slots, .grown = {}}, stream_);
  if (uneven) {
    accounting_.synchronize({});
  }
  accounting_.count_formats();
}

// ---- steps

void KvCache::reserve(std::span<const KvReservation> reservations) {
  settle_growth();
  growth_.begin();
  int64_t growth = 0;
  for (const KvReservation& wanted : reservations) {
    SlotState& slot = slots_.at(wanted.slot);
    TESSERA_CHECK(slot.tokens <= wanted.tokens && wanted.tokens <= shape().context,
                  "a reservation shrinks or exceeds the context");
    const int32_t groups = wanted.tokens / kKvGroup - slot.tokens / kKvGroup;
    KvDemand demanded = planning_.demand(slot);
    demanded.compresses = false;
    const int64_t pages =
        demanded.growth(slot.tokens - slot.replayed(), wanted.tokens - slot.tokens);
    slot.tokens = wanted.tokens;
    slot.grow(pages, accounting_.rank_totals().ranks());
    growth += pages;
    if (groups > 0) {
      growth_.add({wanted.slot.index(), slot.tiers, groups * kKvGroup}, pages, slot.compressed);
    }
  }
  if (growth_.empty()) {
    return;
  }
  prefixes_.make_room(growth);
  accounting_.take(growth);
  growth_.run(*arena_, backend_, stream_);
  accounting_.count_formats();
}

void KvCache::truncate(const KvSlot& slot, int32_t tokens) {
  SlotState& state = slots_.at(slot);
  TESSERA_CHECK(tokens <= state.tokens && tokens / kKvGroup == state.tokens / kKvGroup,
                "tokens of a closed group stay");
  state.tokens = tokens;
}

void KvCache::settle_growth() {
  if (!growth_.settled()) {
    compressed_.clear();
    accounting_.give_back(growth_.settle(*arena_, slots_, compressed_));
    accounting_.synchronize(compressed_);
    accounting_.count_formats();
  }
}

void KvCache::fork(std::span<const KvCopy> copies) {
  if (copies.empty()) {
    return;
  }
  forks_.clear();
  int64_t growth = 0;
  for (const KvCopy& copy : copies) {
    const SlotState& source = slots_.at(copy.source);
    SlotState& target = slots_.at(copy.target);
    TESSERA_CHECK(target.policy == source.policy && !source.policy.is_private(),
                  "a fork between different policies, or with a policy that forks do not share");
    TESSERA_CHECK(
        !source.policy.replays() || (copy.tokens == source.tokens && source.replayed() == 0),
        "a fork of some tokens of sections, or in a replay");
    TESSERA_CHECK(copy.tokens >= 0 && copy.tokens <= source.tokens,
                  "a fork of more tokens than there are");
    TESSERA_CHECK(copy.tokens % kKvGroup == 0 || copy.tokens / kKvGroup == source.tokens / kKvGroup,
                  "a fork of an open group that has closed");
    const int32_t from = copy.source.index();
    const int32_t to = copy.target.index();
    const KvDemand demand = planning_.demand(source);
    if (prefix_cache_ != nullptr) {
      prefix_cache_->paths().fork(from, to, copy.tokens);
    }
    target.begin_as(source, copy.tokens);
    target.passed = KvWindows::of(shape()).position(copy.tokens);
    target.high_pages = demand.pages_for(copy.tokens);
    slots_.families().fork(from, to, demand.full_pages(copy.tokens));
    growth += target.high_pages - demand.full_pages(copy.tokens);
    const int32_t closed = (source.tokens / kKvGroup) * kKvGroup - source.low_tokens;
    forks_.push_back({.from = from,
                      .to = to,
                      .tiers = source.tiers,
                      .high = copy.tokens / kKvGroup * kKvGroup - source.low_tokens,
                      .closed = source.sections.compressed > 0 ? closed : 0,
                      .tokens = copy.tokens,
                      .passed = target.passed});
  }
  prefixes_.make_room(growth);
  accounting_.take(growth);
  backend_.kv_fork({.pool = arena_->pool(), .forks = forks_}, stream_);
  accounting_.count_formats();
}

void KvCache::compress(std::span<const KvSlot* const> slots) {
  settle_growth();
  compress_due(slots);
  pass_windows(slots);
}

void KvCache::compress_due(std::span<const KvSlot* const> slots) {
  const std::span<const KvCompression> planned = compressor_.plan(slots);
  if (planned.empty()) {
    return;
  }
  // A row may take a page before it frees one, except in sections, which have one tier.
  const auto rows = std::count_if(planned.begin(), planned.end(),
                                  [](const KvCompression& one) { return !one.policy.replays(); });
  prefixes_.make_room(shape().slot_rows() * rows);
  run_compressions(planned);
}

// A replay reads what its section's end reads, until it is forgotten.
void KvCache::pass_windows(std::span<const KvSlot* const> slots) {
  const KvWindows windows = KvWindows::of(shape());
  if (windows.rows == 0) {
    return;
  }
  passed_.clear();
  for (const KvSlot* const handle : slots) {
    SlotState& slot = slots_.at(*handle);
    const int32_t capacity = shape().layout(slot.tiers.high).capacity;
    const int32_t to = windows.position(slot.tokens - slot.replayed());
    const int64_t pages = windows.rows * (passed_pages(windows.window, to, capacity) -
                                          passed_pages(windows.window, slot.passed, capacity));
    if (pages > 0) {
      passed_.push_back({handle->index(), slot.tiers.high, slot.passed, to});
      const int64_t cached =
          prefix_cache_ == nullptr ? 0 : prefix_cache_->paths().pass(handle->index(), to);
      slot.high_pages -= pages;
      accounting_.give_back(pages - cached);
    }
    slot.passed = to;
  }
  if (!passed_.empty()) {
    backend_.kv_resize(
        {.pool = arena_->pool(), .released = {}, .grown = {}, .taken = {}, .passed = passed_},
        stream_);
    accounting_.count_formats();
  }
}

// The pages must have one owner while they are compressed, so the tree gives the block away first.
void KvCache::compress_block(const KvSlot& slot) {
  settle_growth();
  prefix_cache_->paths().take_last_block(slot.index());
  const KvSlot* const slots[] = {&slot};
  const std::span<const KvCompression> planned = compressor_.plan(slots);
  TESSERA_CHECK(planned.size() == 1, "a block is compressed before its replay is complete");
  run_compressions(planned);
  prefix_cache_->paths().give_last_section(slot.index());
}

void KvCache::tighten(const KvSlot& slot, int32_t steps) {
  settle_growth();
  const KvTightening promised = planning_.tightening(slot);
  const int64_t own = planning_.own_pages(slot, 0);
  prefixes_.make_room(promised.pages_needed);
  run_compressions(compressor_.plan_tightening(slot, steps, accounting_.rank_totals().ranks()));
  TESSERA_CHECK(
      own - planning_.own_pages(slot, 0) >= promised.freed[static_cast<size_t>(steps - 1)],
      "tightening frees fewer pages than were planned");
}

void KvCache::run_compressions(std::span<const KvCompression> planned) {
  const std::span<const KvCompressed> results = compressor_.run();
  compressed_.clear();
  for (size_t i = 0; i < planned.size(); ++i) {
    compressed_.push_back(planned[i].slot);
    accounting_.give_back(results[i].pages_freed);
  }
  accounting_.synchronize(compressed_);
  accounting_.count_changes(results);
  accounting_.count_formats();
}

// ---- swap

std::optional<SwappedKv> KvCache::swap_out(const KvSlot& slot) const {
  const SlotState& from = slots_.at(slot);
  TESSERA_CHECK(from.compressed, "a slot that can be recomputed is not swapped out");
  // The pages of the rank that needs the most, so that all ranks find room or none does.
  std::optional<SwapRoom::Part> part =
      swap_room_->take(kv_snapshot_bytes(view(), from.max_pages, from.tokens));
  if (!part) {
    return std::nullopt;
  }
  SwappedKv swapped(from, accounting_.usage(slot), *std::move(part));
  backend_.kv_swap_out(
      {arena_->pool(), {slot.index(), from.tiers, from.tokens, from.passed}, swapped.part_.bytes()},
      stream_);
  return swapped;
}

KvSlot KvCache::swap_in(const SwappedKv& swapped) {
  const SlotState& state = swapped.slot_;
  prefixes_.make_room(swapped.pages());
  accounting_.take(swapped.pages());
  accounting_.give_back(swapped.pages() - state.pages());  // this rank may need fewer
  KvSlot slot(*this, slots_.open(state));
  backend_.kv_swap_in({arena_->pool(),
                       {slot.index(), state.tiers, state.tokens, state.passed},
                       swapped.part_.bytes()},
                      stream_);
  accounting_.synchronize({});
  accounting_.count_formats();
  return slot;
}

void KvCache::check_integrity() const {
  TESSERA_CHECK(growth_.settled(), "check_integrity inside a step");
  arena_->check_integrity();
  accounting_.check_integrity();
  if (prefix_cache_ != nullptr) {
    prefix_cache_->check_integrity();
  }
}

}  // namespace tessera
