#include "engine/kv/prefix_hints.h"

#include <ranges>

namespace tessera {

using Node = PrefixTree::Node;

PrefixHints::PrefixHints(PrefixBlocks& blocks, PrefixPins& pins, int32_t path_blocks)
    : blocks_(blocks), tree_(blocks.tree()), pins_(pins) {
  end_.reserve(static_cast<size_t>(path_blocks));
}

void PrefixHints::find_end(const KvMatch& path) {
  end_.clear();
  for (Node node = path.node; node >= 0; node = tree_.parent(node)) {
    const int32_t own_children = end_.empty() ? 0 : 1;
    if (tree_.children(node) != own_children || !pins_.is_only_pinned(node)) {
      break;
    }
    end_.push_back(node);
  }
}

void PrefixHints::demote(const KvMatch& path) {
  find_end(path);
  for (const Node node : end_) {
    blocks_.due().add(node);
  }
}

int64_t PrefixHints::demote_some(int32_t most) {
  int64_t pages = 0;
  for (; most > 0 && demotes(); --most) {
    const Node node = blocks_.due().take();
    if (node != PrefixTree::kNone && pins_.is_only_pinned(node)) {
      pages += blocks_.lower(node);
    }
  }
  blocks_.finish_lowering();
  return pages;
}

void PrefixHints::give_up(const KvMatch& path, int32_t owner) {
  find_end(path);
  pins_.end(end_, owner);
  for (const Node node : end_ | std::views::reverse) {
    if (tree_.is_unlocked(node)) {
      tree_.make_oldest(node);
    }
  }
}

void PrefixHints::touch(const KvMatch& path) {
  if (path.node != PrefixTree::kNone) {
    tree_.lock(path.node);
    tree_.unlock(path.node);
  }
}

}  // namespace tessera
