#include "engine/kv/prefix_pins.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {

using Node = PrefixTree::Node;

PrefixPins::PrefixPins(PrefixBlocks& blocks, int32_t most_blocks)
    : blocks_(blocks),
      tree_(blocks.tree()),
      locks_(static_cast<size_t>(most_blocks)),
      counted_(static_cast<size_t>(most_blocks)) {}

void PrefixPins::lock(const Pin& pin) {
  tree_.lock(pin.node);
  for (Node node = pin.node; node >= 0; node = tree_.parent(node)) {
    ++locks_[static_cast<size_t>(node)];
  }
  blocks_.lock_windows(pin.node, pin.windowed_blocks);
}

void PrefixPins::unlock(const Pin& pin) {
  for (Node node = pin.node; node >= 0; node = tree_.parent(node)) {
    --locks_[static_cast<size_t>(node)];
  }
  tree_.unlock(pin.node);
  blocks_.unlock_windows(pin.node, pin.windowed_blocks);
}

// All blocks before a counted one are counted too.
void PrefixPins::count(Node last, Kept& kept) {
  for (Node node = last; node >= 0 && !is_counted(node); node = tree_.parent(node)) {
    counted_[static_cast<size_t>(node)] = turn_;
    kept.pages += tree_.pages_of(node);
    kept.tokens += std::ssize(tree_.tokens(node));
  }
}

bool PrefixPins::pin(const KvMatch& path, const Terms& terms, int64_t most_pages) {
  if (path.node == PrefixTree::kNone) {
    return true;
  }
  const Time until = terms.now + terms.ttl;
  Kept kept;
  begin_count();
  count(path.node, kept);
  for (Pin& pin : pins_) {
    const bool ends_first = pin.until <= until || pin.ttl <= terms.ttl;
    pin.replaced = pin.owner == terms.owner && ends_first && is_counted(pin.node);
  }
  for (const Pin& pin : pins_) {
    if (pin.owner == terms.owner && !pin.replaced) {
      count(pin.node, kept);
    }
  }
  const int64_t own_tokens = kept.tokens;
  for (const Pin& pin : pins_) {
    if (pin.owner != terms.owner) {
      count(pin.node, kept);
    }
  }
  if (kept.pages > most_pages || own_tokens > terms.max_tokens) {
    return false;
  }
  Node root = path.node;
  while (root >= 0) {
    root = tree_.parent(root);
  }
  const Pin added{path.node, until,       terms.now,
                  terms.ttl, terms.owner, blocks_.windowed_blocks(tree_.format(root))};
  lock(added);
  std::erase_if(pins_, [this](const Pin& pin) {
    if (pin.replaced) {
      unlock(pin);
    }
    return pin.replaced;
  });
  pins_.push_back(added);
  return true;
}

void PrefixPins::renew(const KvMatch& path, int32_t owner, Time now) {
  if (pins_.empty() || path.node == PrefixTree::kNone) {
    return;
  }
  Kept kept;
  begin_count();
  count(path.node, kept);
  for (Pin& pin : pins_) {
    if (pin.owner == owner && is_counted(pin.node)) {
      pin.used = now;
      pin.until = std::max(pin.until, now + pin.ttl);
    }
  }
}

void PrefixPins::unpin(Time now) {
  std::erase_if(pins_, [&](const Pin& pin) {
    if (pin.until <= now) {
      unlock(pin);
    }
    return pin.until <= now;
  });
}

void PrefixPins::end(std::span<const Node> nodes, int32_t owner) {
  begin_count();
  for (const Node node : nodes) {
    counted_[static_cast<size_t>(node)] = turn_;
  }
  std::erase_if(pins_, [&](const Pin& pin) {
    const bool ends = pin.owner == owner && is_counted(pin.node);
    if (ends) {
      unlock(pin);
    }
    return ends;
  });
}

// ---- when pages lack

PrefixPins::Yielded PrefixPins::yield() {
  if (blocks_.stored().any()) {
    return {.any = store_one()};
  }
  const int64_t pages = demote_some();
  return {.any = pages > 0, .pages_freed = pages};
}

// Ends the pin that was used first among those that no sequence uses.
bool PrefixPins::store_one() {
  auto first = pins_.end();
  for (auto pin = pins_.begin(); pin != pins_.end(); ++pin) {
    if (is_only_pinned(pin->node) && (first == pins_.end() || pin->used < first->used)) {
      first = pin;
    }
  }
  if (first == pins_.end() || !blocks_.stored().save_path(first->node)) {
    return false;
  }
  unlock(*first);
  pins_.erase(first);
  return true;
}

int64_t PrefixPins::demote_some() {
  int64_t pages = 0;
  size_t left = PrefixBlocks::kBatch;
  begin_count();
  for (const Pin& pin : pins_) {
    for (Node node = pin.node; node >= 0 && !is_counted(node) && left > 0;
         node = tree_.parent(node)) {
      counted_[static_cast<size_t>(node)] = turn_;
      const int64_t freed = is_only_pinned(node) ? blocks_.lower(node) : 0;
      left -= freed > 0 ? 1 : 0;
      pages += freed;
    }
  }
  blocks_.finish_lowering();
  return pages;
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

void PrefixPins::check_integrity() const {
  std::vector<int32_t> locks(locks_.size());
  for (const Pin& pin : pins_) {
    for (Node node = pin.node; node >= 0; node = tree_.parent(node)) {
      ++locks[static_cast<size_t>(node)];
    }
  }
  TESSERA_CHECK(locks == locks_, "the locks of pins are miscounted");
}

}  // namespace tessera
