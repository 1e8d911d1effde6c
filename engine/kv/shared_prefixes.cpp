#include "engine/kv/shared_prefixes.h"

#include <algorithm>

#include "base/check.h"
#include "engine/kv/kv_shape.h"

namespace tessera {

SharedPrefixes::SharedPrefixes(PrefixCache* cache, const KvArenaShape& shape, SlotTable& slots,
                               KvAccounting& accounting)
    : cache_(cache), shape_(shape), slots_(slots), accounting_(accounting) {}

KvMatch SharedPrefixes::match(const KvPrompt& prompt, int32_t max, const KvMatch& known) const {
  if (!enabled()) {
    return {};
  }
  // The last token must be computed, because its logits choose the next one.
  const int32_t tokens = std::min(max, static_cast<int32_t>(prompt.tokens.size()) - 1);
  return cache_->lookup().match(prompt, std::max(0, tokens), known);
}

KvSections SharedPrefixes::sections_of(const KvMatch& match) const {
  return match.sections.blocks == 0
             ? KvSections{}
             : KvSections{.tokens = block_tokens(),
                          .pages = cache_->lookup().section_step_pages(),
                          .compressed = match.sections.blocks * block_tokens()};
}

void SharedPrefixes::attach_due(const KvSlot& slot, const KvMatch& due) {
  const int32_t index = slot.index();
  SlotState& of = slots_.at(index);
  TESSERA_CHECK(of.tokens == 0 && of.policy.replays(), "a block that is due needs an empty slot");
  cache_->paths().attach(index, of.tiers, 0, due);
  of.tokens = tokens_of(due);
  of.sections.compressed = of.tokens - block_tokens();
  of.passed = whole_tokens_of(due);
  of.high_pages =
      cache_->paths().cached_high_pages(index, 0) + cache_->paths().cached_windowed_pages(index);
  accounting_.count_formats();
}

void SharedPrefixes::attach(const KvSlot& slot, const KvMatch& match) {
  if (!enabled()) {
    return;
  }
  const int32_t index = slot.index();
  SlotState& of = slots_.at(index);
  TESSERA_CHECK(of.tokens == 0, "a match is attached to a slot that is not empty");
  const bool replays = of.policy.replays();
  const auto section_pages =
      static_cast<int32_t>(replays ? of.sections.pages / shape_.whole_rows() : 0);
  TESSERA_CHECK(match.low.blocks == 0 || !of.policy.is_lossy(),
                "a lossy policy begins with demoted blocks");
  if (match.low.blocks > 0) {
    const auto place = std::find(shape_.formats.begin(), shape_.formats.end(), match.low_format);
    of.tiers.low = static_cast<uint8_t>(place - shape_.formats.begin());
  }
  cache_->paths().attach(index, of.tiers, section_pages, match);
  of.tokens = tokens_of(match);
  if (replays) {
    of.sections.compressed = whole_tokens_of(match);
  } else {
    of.sections = sections_of(match);
  }
  of.low_tokens = match.low.blocks * block_tokens();
  of.passed = whole_tokens_of(match);
  of.high_pages =
      cache_->paths().cached_high_pages(index, 0) + cache_->paths().cached_windowed_pages(index);
  of.low_pages = cache_->paths().cached_low_pages(index);
  accounting_.count_formats();
}

void SharedPrefixes::insert(const KvSlot& slot, const KvPrompt& prompt, int32_t tokens,
                            bool replace_coarser) {
  const SlotState& of = slots_.at(slot);
  if (!enabled() || of.compressed) {
    return;
  }
  if (of.policy.replays() && of.sections.compressed != of.tokens) {
    return;  // its last section was inserted when it was compressed
  }
  accounting_.give_back(cache_->paths().insert(
      slot.index(), prompt,
      {std::min(tokens, of.tokens), of.tokens - of.low_tokens, replace_coarser}));
  accounting_.count_formats();
}

void SharedPrefixes::own_short_blocks(const KvSlot& slot) {
  const int64_t pages = enabled() ? cache_->paths().attached_short_pages(slot.index()) : 0;
  if (pages == 0) {
    return;
  }
  make_room(pages);
  accounting_.take(pages);
  cache_->paths().own_short_blocks(slot.index());
  accounting_.count_formats();
}

void SharedPrefixes::insert_short_blocks(const KvSlot& slot, const KvPrompt& prompt, int32_t tokens,
                                         bool replace_coarser) {
  const SlotState& of = slots_.at(slot);
  if (!enabled() || of.policy.is_private() || of.replayed() > 0) {
    return;
  }
  accounting_.give_back(cache_->paths().insert_short_blocks(
      slot.index(), prompt, {std::min(tokens, of.tokens), of.tokens, replace_coarser}));
  accounting_.count_formats();
}

int32_t SharedPrefixes::record(std::span<const uint64_t> paths) {
  return enabled() ? cache_->record(paths) * block_tokens() : 0;
}

int32_t SharedPrefixes::hand_over(const KvSlot& slot) {
  if (!enabled()) {
    return 0;
  }
  SlotState& of = slots_.at(slot);
  const SlotPaths::HandedOver taken = cache_->paths().hand_over(slot.index());
  accounting_.give_back(taken.pages_freed);
  if (taken.blocks > 0) {
    // The policy could not touch these blocks, so its rule evaluates all tokens again.
    of.handed_over = true;
    of.evaluated = 0;
  }
  accounting_.count_formats();
  return taken.blocks;
}

void SharedPrefixes::flush() {
  if (enabled()) {
    accounting_.give_back(cache_->flush());
    accounting_.count_formats();
  }
}

bool SharedPrefixes::pin(const KvMatch& path, const PrefixPins::Terms& terms) {
  return enabled() && cache_->pins().pin(path, terms, shape_.pages - context_pages(shape_));
}

void SharedPrefixes::renew(const KvMatch& path, int32_t owner, PrefixPins::Time now) {
  if (enabled()) {
    cache_->pins().renew(path, owner, now);
  }
}

bool SharedPrefixes::yield_pins() {
  const PrefixPins::Yielded yielded = enabled() ? cache_->pins().yield() : PrefixPins::Yielded{};
  accounting_.give_back(yielded.pages_freed);
  accounting_.count_formats();
  return yielded.any;
}

void SharedPrefixes::demote(const KvMatch& path) {
  if (enabled()) {
    cache_->hints().demote(path);
  }
}

bool SharedPrefixes::demote_some(int32_t most) {
  if (!enabled() || !cache_->hints().demotes()) {
    return false;
  }
  accounting_.give_back(cache_->hints().demote_some(most));
  accounting_.count_formats();
  return cache_->hints().demotes();
}

void SharedPrefixes::give_up(const KvMatch& path, int32_t owner) {
  if (enabled()) {
    cache_->hints().give_up(path, owner);
  }
}

void SharedPrefixes::touch(const KvMatch& path) {
  if (enabled()) {
    cache_->hints().touch(path);
  }
}

void SharedPrefixes::unpin(PrefixPins::Time now) {
  if (enabled()) {
    cache_->pins().unpin(now);
  }
}

void SharedPrefixes::count_unlocked_pages(std::span<const KvSlot* const> slots,
                                          std::vector<int64_t>& pages) {
  pages.assign(slots.size(), 0);
  for (size_t i = 0; enabled() && i < slots.size(); ++i) {
    pages[i] = cache_->paths().pages_unlocked_by_release(slots[i]->index());
  }
  if (enabled()) {
    cache_->paths().forget_releases();
  }
}

SharedPrefixes::Restored::Restored(SharedPrefixes& prefixes, const KvMatch& match)
    : prefixes_(prefixes), node_(match.blocks() > 0 ? match.node : PrefixTree::kNone) {
  if (node_ != PrefixTree::kNone) {
    prefixes_.cache_->blocks().tree().lock(node_);
  }
}

SharedPrefixes::Restored::~Restored() {
  if (node_ != PrefixTree::kNone) {
    prefixes_.cache_->blocks().tree().unlock(node_);
  }
}

bool SharedPrefixes::Restored::add(const KvPrompt& prompt, const BlockBuffer& stored) {
  PrefixBlocks& blocks = prefixes_.cache_->blocks();
  KvAccounting& accounting = prefixes_.accounting_;
  const int64_t pages = blocks.stored().pages_of(stored);
  if (pages < 0 || pages > accounting.available_pages()) {
    return false;
  }
  prefixes_.make_room(pages);
  const PrefixTree::Node node = blocks.restore(prompt, node_, stored);
  if (node == PrefixTree::kNone) {
    return false;
  }
  node_ = node;
  accounting.take(pages);
  accounting.count_formats();
  return true;
}

void SharedPrefixes::make_room(int64_t pages) {
  const int64_t missing = pages - accounting_.free_pages();
  if (enabled() && missing > 0) {
    accounting_.give_back(cache_->blocks().make_room(missing));
    accounting_.count_formats();
  }
}

}  // namespace tessera
