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

void KvCache::attach(int32_t slot, const KvMatch& match) {
  if (prefixes_ == nullptr) {
    return;
  }
  Slot& of = open(slot);
  TESSERA_CHECK(of.tokens == 0, "a match is attached to a slot that is not empty");
  TESSERA_CHECK(match.low_blocks == 0 || !of.policy.is_lossy(),
                "a lossy policy begins with demoted blocks");
  if (match.low_blocks > 0) {
    const auto place = std::find(shape().formats.begin(), shape().formats.end(), match.low);
    of.tiers.low = static_cast<uint8_t>(place - shape().formats.begin());
  }
  prefixes_->attach(slot, of.tiers, match);
  of.tokens = tokens_of(match);
  of.low_tokens = match.low_blocks * prefix_block_tokens();
  of.high_pages = prefixes_->cached_high_pages(slot, 0);
  of.low_pages = prefixes_->cached_low_pages(slot);
  count_format_pages();
}

void KvCache::insert(int32_t slot, const KvPrompt& prompt, int32_t tokens, bool replace_coarser) {
  const Slot& of = open(slot);
  if (prefixes_ == nullptr || of.compressed) {
    return;
  }
  free_pages_ += prefixes_->insert(
      slot, prompt, std::min(tokens, of.tokens) / prefix_block_tokens(), replace_coarser);
  count_format_pages();
}

int32_t KvCache::record(std::span<const uint64_t> paths) {
  return prefixes_ == nullptr ? 0 : prefixes_->record(paths) * prefix_block_tokens();
}

int32_t KvCache::hand_over(int32_t slot) {
  if (prefixes_ == nullptr || !open(slot).open) {
    return 0;
  }
  const int32_t blocks = prefixes_->hand_over(slot);
  if (blocks > 0) {
    // The policy could not touch these blocks, so its rule evaluates all tokens again.
    open(slot).handed_over = true;
    open(slot).evaluated = 0;
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

bool KvCache::pin(int32_t slot, PrefixCache::Time until) {
  const int64_t context_pages = heads_ * (shape().row_pages() + (shape().token_scores ? 2 : 0));
  return prefixes_ != nullptr && open(slot).open && prefixes_->pin(slot, until, context_pages);
}

void KvCache::unpin(PrefixCache::Time now) {
  if (prefixes_ != nullptr) {
    prefixes_->unpin(now);
  }
}

int64_t KvCache::own_pages(int32_t slot, int32_t forked) const {
  const Slot& of = open(slot);
  const int64_t forked_pages = forked > 0 ? demand(slot).full_pages(forked) + of.low_pages : 0;
  if (prefixes_ == nullptr) {
    return min_pages(of) - forked_pages;
  }
  const int64_t low = forked > 0 ? 0 : prefixes_->cached_low_pages(slot);
  return min_pages(of) - forked_pages - prefixes_->cached_high_pages(slot, forked) - low;
}

void KvCache::count_unlocked_pages(std::span<const int32_t> slots, std::vector<int64_t>& pages) {
  pages.assign(slots.size(), 0);
  for (size_t i = 0; prefixes_ != nullptr && i < slots.size(); ++i) {
    pages[i] = prefixes_->pages_unlocked_by_release(slots[i]);
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
