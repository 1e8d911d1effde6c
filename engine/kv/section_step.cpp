// The section step of PrefixCache: whole blocks become compressed sections.

#include "engine/kv/prefix_cache.h"
#include "kernels/check.h"

namespace tessera {

using Node = PrefixTree::Node;

void PrefixCache::add_section_step(KvFormat format, int32_t section_pages) {
  TESSERA_CHECK(tree_.size() == 0, "a cache gets its section step while it is empty");
  whole_level_ = level_of(format);
  section_level_ = level_of(format, section_pages);
}

// Walks from each unlocked whole block to the first whole block of its path. The walk takes less
// time than the step that is saved: there are few blocks, because one has hundreds of tokens.
KvMatch PrefixCache::due_block() const {
  KvMatch match;
  if (!has_section_step()) {
    return match;
  }
  for (Node node = tree_.lru_of_level(whole_level_); node != PrefixTree::kNone;
       node = tree_.more_recent_of_level(node)) {
    if (tree_.is_short(node)) {
      continue;
    }
    Node first = node;
    int32_t blocks = 1;
    for (Node before = tree_.parent(node); before >= 0; before = tree_.parent(before), ++blocks) {
      if (tree_.level(before) == whole_level_) {
        first = before;
        blocks = 0;
      }
    }
    const int32_t replay_end = (blocks + 1) * prefix_block_tokens();
    if (tree_.is_unlocked(first) && replay_end <= arena_.shape().context) {
      match.node = first;
      match.blocks = blocks;
      match.section_blocks = blocks - 1;
      match.grade = blocks > 1 ? section_level_ : whole_level_;
      match.pages = (blocks - 1) * section_step_pages() + tree_.prefix_block_pages(whole_level_);
      match.version = tree_.version() + 1;
      return match;
    }
  }
  return match;
}

void PrefixCache::take_last_block(int32_t slot) {
  Holder& holder = at(slot);
  TESSERA_CHECK(holder.blocks == holder.section_blocks + 1 && !last_is_used(slot),
                "a block that is in use, or not due, is compressed");
  const int32_t handles[] = {holder.node};
  backend_.kv_evict({arena_.pool(), handles}, stream_);
  tree_.relabel(holder.node, section_level_, section_level_);
  ++holder.section_blocks;
  ++counting_.compressed_blocks;
}

void PrefixCache::give_last_section(int32_t slot) {
  const Holder& holder = at(slot);
  const KvShare shares[] = {{.slot = slot,
                             .tier = tier_of(section_level_),
                             .first = (holder.blocks - 1) * prefix_block_tokens(),
                             .handle = holder.node,
                             .section = true}};
  backend_.kv_share({arena_.pool(), shares}, stream_);
}

}  // namespace tessera
