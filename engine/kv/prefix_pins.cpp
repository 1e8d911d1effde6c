// The pins of PrefixCache: paths that stay when pages run out.

#include "engine/kv/prefix_cache.h"

namespace tessera {

using Node = PrefixTree::Node;

bool PrefixCache::replaces(const Pin& old, int32_t slot, const PinTerms& terms) const {
  Node node = at(slot).node;
  while (node >= 0 && node != old.node) {
    node = tree_.parent(node);
  }
  return node >= 0 && old.owner == terms.owner && old.until <= terms.until;
}

void PrefixCache::unlock(const Pin& pin) {
  tree_.unlock(pin.node);
  unlock_windows(pin.node, pin.windowed_blocks);
}

bool PrefixCache::pin(int32_t slot, const PinTerms& terms, int64_t reserve) {
  const Holder& holder = at(slot);
  if (holder.node == PrefixTree::kNone) {
    return true;
  }
  int64_t pages = 0;
  int64_t tokens = tokens_of(holder);
  for (Node node = holder.node; node >= 0; node = tree_.parent(node)) {
    pages += tree_.pages_of(node);
  }
  int64_t pinned = pages;
  for (const Pin& pin : pins_) {
    if (!replaces(pin, slot, terms)) {
      pinned += pin.pages;
      tokens += pin.owner == terms.owner ? pin.tokens : 0;
    }
  }
  if (pinned + reserve > arena_.shape().pages || tokens > terms.max_tokens) {
    return false;
  }
  tree_.lock(holder.node);
  const int32_t windowed = windowed_blocks(holder.own_level);
  lock_windows(holder.node, windowed);
  std::erase_if(pins_, [&](const Pin& pin) {
    const bool replaced = replaces(pin, slot, terms);
    if (replaced) {
      unlock(pin);
    }
    return replaced;
  });
  pins_.push_back({holder.node, terms.until, pages, terms.owner, tokens_of(holder), windowed});
  return true;
}

void PrefixCache::unpin(Time now) {
  std::erase_if(pins_, [&](const Pin& pin) {
    if (pin.until <= now) {
      unlock(pin);
    }
    return pin.until <= now;
  });
}

}  // namespace tessera
