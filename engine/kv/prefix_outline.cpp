#include "engine/kv/prefix_outline.h"

#include <functional>

namespace tessera {

using Node = PrefixTree::Node;

uint64_t PrefixOutline::salt_mark(std::string_view salt) {
  return salt.empty() ? 0 : std::hash<std::string_view>{}(salt) | 1;
}

PrefixOutliner::PrefixOutliner(const PrefixTree& tree, int32_t max_path) : tree_(tree) {
  path_.reserve(static_cast<size_t>(max_path));
}

void PrefixOutliner::begin(PrefixOutline& out) {
  out_ = &out;
  out.blocks.clear();
  out.omitted = 0;
  places_.fill(0);
}

// Linear probing. The table is at most a quarter full.
int32_t& PrefixOutliner::place(Node node) {
  size_t at = (static_cast<uint32_t>(node) * 2'654'435'761U) % kPlaces;
  while (places_[at] != 0 && out_->blocks[static_cast<size_t>(places_[at] - 1)].id != node) {
    at = (at + 1) % kPlaces;
  }
  return places_[at];
}

bool PrefixOutliner::add(Node node) {
  if (std::ssize(out_->blocks) == PrefixOutline::kMaxBlocks) {
    return false;
  }
  const Node parent = tree_.parent(node);
  PrefixOutline::Block block{.id = node,
                             .format = tree_.level(node),
                             .grade = tree_.grade(node),
                             .locked = tree_.locks(node) > 0};
  if (parent < 0) {
    block.salt = PrefixOutline::salt_mark(tree_.salt(parent));
  } else {
    block.parent = place(parent) - 1;
    if (block.parent < 0) {
      return false;
    }
    block.salt = out_->blocks[static_cast<size_t>(block.parent)].salt;
  }
  int32_t& place_of_node = place(node);
  out_->blocks.push_back(block);
  place_of_node = static_cast<int32_t>(out_->blocks.size());
  return true;
}

void PrefixOutliner::add_path(Node node) {
  path_.clear();
  for (; node >= 0 && place(node) == 0; node = tree_.parent(node)) {
    path_.push_back(node);
  }
  while (!path_.empty() && add(path_.back())) {
    path_.pop_back();
  }
}

// The deepest block of a released path comes first in the LRU list. So from its end backwards a
// parent comes before its children.
void PrefixOutliner::finish() {
  for (Node node = tree_.mru(); node != PrefixTree::kNone; node = tree_.less_recent(node)) {
    if (std::ssize(out_->blocks) == PrefixOutline::kMaxBlocks) {
      break;
    }
    add(node);
  }
  out_->omitted = tree_.size() - std::ssize(out_->blocks);
}

}  // namespace tessera
