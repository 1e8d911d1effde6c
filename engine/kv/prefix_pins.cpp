#include "engine/kv/prefix_pins.h"

namespace tessera {

using Node = PrefixTree::Node;

bool PrefixPins::replaces(const Pin& old, const SlotPath& path, const Terms& terms) const {
  Node node = path.node;
  while (node >= 0 && node != old.node) {
    node = tree_.parent(node);
  }
  return node >= 0 && old.owner == terms.owner && old.until <= terms.until;
}

void PrefixPins::unlock(const Pin& pin) {
  tree_.unlock(pin.node);
  blocks_.unlock_windows(pin.node, pin.windowed_blocks);
}

bool PrefixPins::pin(const SlotPath& path, int64_t tokens, const Terms& terms, int64_t most_pages) {
  if (path.node == PrefixTree::kNone) {
    return true;
  }
  int64_t pages = 0;
  for (Node node = path.node; node >= 0; node = tree_.parent(node)) {
    pages += tree_.pages_of(node);
  }
  int64_t pinned = pages;
  int64_t of_owner = tokens;
  for (const Pin& pin : pins_) {
    if (!replaces(pin, path, terms)) {
      pinned += pin.pages;
      of_owner += pin.owner == terms.owner ? pin.tokens : 0;
    }
  }
  if (pinned > most_pages || of_owner > terms.max_tokens) {
    return false;
  }
  tree_.lock(path.node);
  const int32_t windowed = blocks_.windowed_blocks(path.own_level);
  blocks_.lock_windows(path.node, windowed);
  std::erase_if(pins_, [&](const Pin& pin) {
    const bool replaced = replaces(pin, path, terms);
    if (replaced) {
      unlock(pin);
    }
    return replaced;
  });
  pins_.push_back({path.node, terms.until, pages, terms.owner, tokens, windowed});
  return true;
}

void PrefixPins::unpin(Time now) {
  std::erase_if(pins_, [&](const Pin& pin) {
    if (pin.until <= now) {
      unlock(pin);
    }
    return pin.until <= now;
  });
}

int64_t PrefixPins::blocks() const {
  int64_t blocks = 0;
  for (const Pin& pin : pins_) {
    for (Node node = pin.node; node >= 0; node = tree_.parent(node)) {
      ++blocks;
    }
  }
  return blocks;
}

}  // namespace tessera
