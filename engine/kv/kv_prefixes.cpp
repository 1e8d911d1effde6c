// The functions of KvCache for shared prefixes.

#include <algorithm>

#include "engine/kv/kv_cache.h"
#include "kernels/check.h"

namespace tessera {

KvMatch KvCache::match(const KvPrompt& prompt, int32_t max, const KvMatch& known) const {
  if (prefixes_ == nullptr) {
    return {};
  }
  // The last token must be computed, because its logits choose the next one.
  const int32_t tokens = std::min(max, static_cast<int32_t>(prompt.tokens.size()) - 1);
  return prefixes_->match(prompt, std::max(0, tokens / prefix_block_tokens()), known);
}

void KvCache::attach(const KvSlot& slot, const KvMatch& match) {
  if (prefixes_ == nullptr) {
    return;
  }
  const int32_t index = index_of(slot);
  Slot& of = open(index);
  TESSERA_CHECK(of.tokens == 0, "a match is attached to a slot that is not empty");
  TESSERA_CHECK(match.low_blocks == 0 || !of.policy.is_lossy(),
                "a lossy policy begins with demoted blocks");
  if (match.low_blocks > 0) {
    const auto place = std::find(shape().formats.begin(), shape().formats.end(), match.low);
    of.tiers.low = static_cast<uint8_t>(place - shape().formats.begin());
  }
  prefixes_->attach(index, of.tiers, match);
  of.tokens = tokens_of(match);
  of.low_tokens = match.low_blocks * prefix_block_tokens();
  of.high_pages = prefixes_->cached_high_pages(index, 0);
  of.low_pages = prefixes_->cached_low_pages(index);
  count_format_pages();
}

void KvCache::insert(const KvSlot& slot, const KvPrompt& prompt, int32_t tokens,
                     bool replace_coarser) {
  const Slot& of = state(slot);
  if (prefixes_ == nullptr || of.compressed) {
    return;
  }
  free_pages_ += prefixes_->insert(
      index_of(slot), prompt, std::min(tokens, of.tokens) / prefix_block_tokens(), replace_coarser);
  count_format_pages();
}

int32_t KvCache::record(std::span<const uint64_t> paths) {
  return prefixes_ == nullptr ? 0 : prefixes_->record(paths) * prefix_block_tokens();
}

int32_t KvCache::hand_over(const KvSlot& slot) {
  if (prefixes_ == nullptr) {
    return 0;
  }
  Slot& of = open(index_of(slot));
  const int32_t blocks = prefixes_->hand_over(index_of(slot));
  if (blocks > 0) {
    // The policy could not touch these blocks, so its rule evaluates all tokens again.
    of.handed_over = true;
    of.evaluated = 0;
  }
  count_format_pages();
  return blocks;
}

void KvCache::flush() {
  if (prefixes_ != nullptr) {
    free_pages_ += prefixes_->flush();
    count_format_pages();
  }
}

bool KvCache::pin(const KvSlot& slot, PrefixCache::Time until) {
  const int64_t context_pages = heads_ * (shape().row_pages() + (shape().token_scores ? 2 : 0));
  return prefixes_ != nullptr && prefixes_->pin(index_of(slot), until, context_pages);
}

void KvCache::unpin(PrefixCache::Time now) {
  if (prefixes_ != nullptr) {
    prefixes_->unpin(now);
  }
}

int64_t KvCache::own_pages(const KvSlot& slot, int32_t forked) const {
  const Slot& of = state(slot);
  const int64_t forked_pages = forked > 0 ? demand_of(of).full_pages(forked) + of.low_pages : 0;
  if (prefixes_ == nullptr) {
    return min_pages(of) - forked_pages;
  }
  const int64_t low = forked > 0 ? 0 : prefixes_->cached_low_pages(index_of(slot));
  return min_pages(of) - forked_pages - prefixes_->cached_high_pages(index_of(slot), forked) - low;
}

void KvCache::count_unlocked_pages(std::span<const KvSlot* const> slots,
                                   std::vector<int64_t>& pages) {
  pages.assign(slots.size(), 0);
  for (size_t i = 0; prefixes_ != nullptr && i < slots.size(); ++i) {
    pages[i] = prefixes_->pages_unlocked_by_release(index_of(*slots[i]));
  }
  if (prefixes_ != nullptr) {
    prefixes_->forget_releases();
  }
}

void KvCache::make_room(int64_t pages) {
  const int64_t missing = pages - free_pages();
  if (prefixes_ != nullptr && missing > 0) {
    free_pages_ += prefixes_->make_room(missing);
    count_format_pages();
  }
}

}  // namespace tessera
