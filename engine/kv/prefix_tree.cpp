#include "engine/kv/prefix_tree.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "engine/tier/block_hash.h"

namespace tessera {
namespace {

size_t bucket_count(int32_t blocks) {
  return std::bit_ceil(static_cast<size_t>(std::max(1, blocks)) * 2);
}

}  // namespace

PrefixTree::PrefixTree(const Shape& shape)
    : shape_(shape),
      entries_(static_cast<size_t>(shape.blocks)),
      tokens_(static_cast<size_t>(shape.blocks) * static_cast<size_t>(shape.prefix_block_tokens)),
      buckets_(bucket_count(shape.blocks), kNone) {
  TESSERA_CHECK(shape.blocks >= 0 && shape.prefix_block_tokens > 0,
                "a prefix block has at least one token");
  TESSERA_CHECK(shape.short_block_tokens < shape.prefix_block_tokens,
                "a short block is shorter than a whole one");
  free_.reserve(entries_.size());
  for (Node node = shape.blocks; node > 0; --node) {
    free_.push_back(node - 1);
  }
}

int64_t PrefixTree::block_bytes(int32_t prefix_block_tokens) {
  // At most 4 buckets for each block, and one entry of the free list.
  return static_cast<int64_t>(sizeof(Entry) + 5 * sizeof(Node)) +
         prefix_block_tokens * int64_t{sizeof(int32_t)};
}

std::span<const int32_t> PrefixTree::tokens(Node node) const {
  const auto room = static_cast<size_t>(shape_.prefix_block_tokens);
  const auto length =
      static_cast<size_t>(is_short(node) ? shape_.short_block_tokens : shape_.prefix_block_tokens);
  return std::span(tokens_).subspan(static_cast<size_t>(node) * room, length);
}

size_t PrefixTree::bucket(Node parent, uint64_t hash) const {
  return mixed_hash(hash + static_cast<uint32_t>(parent) * kHashFactor) & (buckets_.size() - 1);
}

PrefixTree::Node PrefixTree::find_root(std::string_view salt, uint8_t format) const {
  // The copy of the salt is acceptable: lookups of roots are rare, and most salts fit into the
  // string's own buffer.
  const auto found = root_names_.find(std::pair(std::string(salt), format));
  return found == root_names_.end() ? kNone : found->second;
}

PrefixTree::Node PrefixTree::root(std::string_view salt, uint8_t format) {
  const auto [place, is_new] =
      root_names_.try_emplace(std::pair(std::string(salt), format), next_root_);
  if (is_new) {
    roots_[next_root_] = {place->first, 0};
    next_root_ = next_root_ == kNone + 1 ? -1 : next_root_ - 1;
  }
  return place->second;
}

PrefixTree::Node PrefixTree::child(Node parent, std::span<const int32_t> tokens,
                                   uint64_t hash) const {
  for (Node node = buckets_[bucket(parent, hash)]; node != kNone; node = at(node).next_in_bucket) {
    const std::span<const int32_t> other = this->tokens(node);
    if (at(node).parent == parent && at(node).hash == hash &&
        std::equal(tokens.begin(), tokens.end(), other.begin(), other.end())) {
      return node;
    }
  }
  return kNone;
}

PrefixTree::Node PrefixTree::insert(Node parent, std::span<const int32_t> tokens, uint64_t hash,
                                    uint8_t level, uint8_t grade) {
  const bool is_short = std::ssize(tokens) == shape_.short_block_tokens;
  TESSERA_CHECK(is_short || std::ssize(tokens) == shape_.prefix_block_tokens,
                "a node is one block of tokens");
  TESSERA_CHECK(is_short || parent < 0 || !at(parent).is_short, "a whole block behind a short one");
  TESSERA_CHECK(!free_.empty(), "more nodes than blocks");
  TESSERA_CHECK(parent < 0 || (at(parent).live && at(parent).locks > 0),
                "a parent that the caller has not locked");
  TESSERA_CHECK(grade >= level, "a grade finer than the level");
  const Node node = free_.back();
  free_.pop_back();
  Entry& entry = at(node);
  TESSERA_CHECK(!entry.live, "a handle given twice");
  Node& first = buckets_[bucket(parent, hash)];
  entry = {.parent = parent,
           .next_in_bucket = first,
           .hash = hash,
           .locks = 1,
           .recent = {},
           .of_level = {},
           .windows = {},
           .windows_level = level,
           .level = level,
           .grade = grade,
           .is_short = is_short,
           .live = true};
  first = node;
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + node * int64_t{shape_.prefix_block_tokens});
  ++(parent < 0 ? root_at(parent).children : at(parent).children);
  ++size_;
  levels_[level].pages += whole_pages_of(node);
  pages_ += whole_pages_of(node);
  return node;
}

// ---- locks

template <PrefixTree::Links PrefixTree::Entry::*Field>
void PrefixTree::append(List& list, Node node) {
  at(node).*Field = {list.last, kNone};
  (list.last == kNone ? list.first : (at(list.last).*Field).next) = node;
  list.last = node;
}

template <PrefixTree::Links PrefixTree::Entry::*Field>
void PrefixTree::prepend(List& list, Node node) {
  at(node).*Field = {kNone, list.first};
  (list.first == kNone ? list.last : (at(list.first).*Field).previous) = node;
  list.first = node;
}

template <PrefixTree::Links PrefixTree::Entry::*Field>
void PrefixTree::remove(List& list, Node node) {
  const Links links = at(node).*Field;
  (links.previous == kNone ? list.first : (at(links.previous).*Field).next) = links.next;
  (links.next == kNone ? list.last : (at(links.next).*Field).previous) = links.previous;
}

void PrefixTree::add_to_lru(Node node) {
  append<&Entry::recent>(recent_, node);
  append<&Entry::of_level>(levels_[at(node).level].unlocked, node);
  at(node).used = ++time_;
  unlocked_pages_ += whole_pages_of(node);
}

void PrefixTree::remove_from_lru(Node node) {
  remove<&Entry::recent>(recent_, node);
  remove<&Entry::of_level>(levels_[at(node).level].unlocked, node);
  unlocked_pages_ -= whole_pages_of(node);
}

void PrefixTree::lock(Node node) {
  for (; node >= 0; node = at(node).parent) {
    descend(node);
  }
}

void PrefixTree::unlock(Node node) {
  while (node >= 0) {
    node = retreat(node);
  }
}

void PrefixTree::descend(Node child) {
  TESSERA_CHECK(at(child).live, "a lock on a node that is not in the tree");
  if (at(child).locks++ == 0) {
    remove_from_lru(child);
  }
}

PrefixTree::Node PrefixTree::retreat(Node node) {
  TESSERA_CHECK(at(node).live && at(node).locks > 0, "an unlock of a node without locks");
  if (--at(node).locks == 0) {
    add_to_lru(node);
  }
  return at(node).parent;
}

// ---- windows

void PrefixTree::add_windows(Node node) {
  Entry& entry = at(node);
  TESSERA_CHECK(entry.live && !entry.has_windows, "windows are added twice, or to no node");
  entry.has_windows = true;
  entry.window_locks = 1;
  levels_[entry.windows_level].pages += windows_pages_at(node);
  pages_ += windows_pages_at(node);
}

void PrefixTree::lock_windows(Node node) {
  Entry& entry = at(node);
  if (entry.has_windows && entry.window_locks++ == 0) {
    remove<&Entry::windows>(windows_, node);
    unlocked_pages_ -= windows_pages_at(node);
  }
}

void PrefixTree::unlock_windows(Node node) {
  Entry& entry = at(node);
  if (!entry.has_windows) {
    return;
  }
  TESSERA_CHECK(entry.window_locks > 0, "an unlock of windows without locks");
  if (--entry.window_locks == 0) {
    append<&Entry::windows>(windows_, node);
    entry.windows_used = ++time_;
    unlocked_pages_ += windows_pages_at(node);
  }
}

void PrefixTree::drop_windows(Node node, bool outdate) {
  Entry& entry = at(node);
  if (!entry.has_windows) {
    return;
  }
  TESSERA_CHECK(entry.window_locks == 0, "windows in use are dropped");
  remove<&Entry::windows>(windows_, node);
  unlocked_pages_ -= windows_pages_at(node);
  levels_[entry.windows_level].pages -= windows_pages_at(node);
  pages_ -= windows_pages_at(node);
  entry.has_windows = false;
  version_ += outdate ? 1 : 0;
}

// ---- changes

void PrefixTree::erase(Node leaf) {
  Entry& entry = at(leaf);
  TESSERA_CHECK(entry.live && entry.locks == 0 && entry.children == 0,
                "an erased node is in use, or not in the tree");
  remove_from_lru(leaf);
  drop_windows(leaf, true);
  Node* link = &buckets_[bucket(entry.parent, entry.hash)];
  while (*link != leaf) {
    link = &at(*link).next_in_bucket;
  }
  *link = entry.next_in_bucket;
  if (entry.parent >= 0) {
    --at(entry.parent).children;
  } else if (Root& root = root_at(entry.parent); --root.children == 0 && !root.name.first.empty()) {
    root_names_.erase(root.name);
    roots_.erase(entry.parent);
  }
  --size_;
  levels_[entry.level].pages -= whole_pages_of(leaf);
  pages_ -= whole_pages_of(leaf);
  entry.live = false;
  free_.push_back(leaf);
  ++version_;
}

void PrefixTree::relabel(Node node, uint8_t level, uint8_t grade) {
  TESSERA_CHECK(at(node).live && grade >= level, "relabel with an invalid node or grade");
  Entry& entry = at(node);
  if (entry.level != level) {
    levels_[entry.level].pages -= whole_pages_of(node);
    levels_[level].pages += pages_of(node, level);
    const int64_t more = pages_of(node, level) - whole_pages_of(node);
    pages_ += more;
    if (entry.locks == 0) {
      unlocked_pages_ += more;
      remove<&Entry::of_level>(levels_[entry.level].unlocked, node);
      append<&Entry::of_level>(levels_[level].unlocked, node);
    }
  }
  entry.level = level;
  entry.grade = grade;
  ++version_;
}

void PrefixTree::make_oldest(Node node) {
  TESSERA_CHECK(is_unlocked(node), "a node in use becomes the least recently used one");
  List& of_level = levels_[at(node).level].unlocked;
  remove<&Entry::recent>(recent_, node);
  remove<&Entry::of_level>(of_level, node);
  prepend<&Entry::recent>(recent_, node);
  prepend<&Entry::of_level>(of_level, node);
  at(node).used = 0;
}

void PrefixTree::check_integrity() const {
  std::vector<int32_t> children(entries_.size());
  std::vector<int64_t> child_locks(entries_.size());
  int32_t live = 0;
  int64_t all_pages = 0;
  int64_t unlocked = 0;
  int64_t unlocked_windows = 0;
  for (Node node = 0; node < shape_.blocks; ++node) {
    const Entry& entry = at(node);
    if (!entry.live) {
      continue;
    }
    ++live;
    all_pages += pages_of(node);
    unlocked += entry.locks == 0 ? whole_pages_of(node) : 0;
    unlocked_windows += entry.window_locks == 0 ? windows_pages_of(node) : 0;
    TESSERA_CHECK(entry.window_locks == 0 || (entry.has_windows && entry.locks > 0),
                  "locked windows that a node does not have, or in an unlocked one");
    TESSERA_CHECK(child(entry.parent, tokens(node), entry.hash) == node, "a node is not found");
    TESSERA_CHECK(entry.hash == block_hash(tokens(node)), "a node under another's hash");
    if (entry.parent >= 0) {
      TESSERA_CHECK(at(entry.parent).live, "a node without a parent");
      ++children[static_cast<size_t>(entry.parent)];
      child_locks[static_cast<size_t>(entry.parent)] += entry.locks;
    }
  }
  for (Node node = 0; node < shape_.blocks; ++node) {
    TESSERA_CHECK(!at(node).live || at(node).children == children[static_cast<size_t>(node)],
                  "a node's children are not counted");
    TESSERA_CHECK(!at(node).live || at(node).locks >= child_locks[static_cast<size_t>(node)],
                  "a lock that does not count for an ancestor");
  }
  std::vector<bool> seen(entries_.size());
  int64_t unlocked_pages = 0;
  for (Node node = recent_.first; node != kNone; node = at(node).recent.next) {
    TESSERA_CHECK(at(node).live && at(node).locks == 0, "a locked node among the unlocked");
    TESSERA_CHECK(at(node).parent < 0 || !seen[static_cast<size_t>(at(node).parent)],
                  "a node follows its parent in the LRU list");
    seen[static_cast<size_t>(node)] = true;
    unlocked -= whole_pages_of(node);
    unlocked_pages += whole_pages_of(node);
  }
  for (Node node = windows_.first; node != kNone; node = at(node).windows.next) {
    TESSERA_CHECK(at(node).live && at(node).window_locks == 0, "locked windows among the unlocked");
    unlocked_windows -= windows_pages_of(node);
    unlocked_pages += windows_pages_of(node);
  }
  TESSERA_CHECK(unlocked_windows == 0 && unlocked_pages == unlocked_pages_,
                "unlocked windows that are never dropped");
  TESSERA_CHECK(unlocked == 0, "an unlocked node that is never evicted");
  TESSERA_CHECK(
      live == size_ && all_pages == pages_ && std::ssize(free_) + live == std::ssize(entries_),
      "nodes are lost");
}

}  // namespace tessera
