// The blocks of PrefixCache and the stores below it (engine/tier/block_tiers.h).

#include <algorithm>
#include <vector>

#include "engine/kv/prefix_cache.h"
#include "engine/tier/block_tiers.h"
#include "kernels/check.h"
#include "kernels/cpu/pages/prefix_block_bytes.h"

namespace tessera {

using Node = PrefixTree::Node;

BlockTiers::Shape PrefixCache::stored_shape() const {
  const KvArenaShape& shape = arena_.shape();
  return {max_prefix_block_bytes(arena_.pool()), shape.prefix_block_tokens,
          shape.context / shape.prefix_block_tokens};
}

void PrefixCache::store_in(BlockTiers& tiers) {
  TESSERA_CHECK(tree_.size() == 0 && arena_.shape().windowed_rows() == 0,
                "a cache gets its stores while it is empty, and stores no windows");
  const auto blocks = static_cast<size_t>(arena_.shape().prefix_blocks());
  keys_.resize(blocks);
  unsaved_.begin(blocks);
  tiers_ = &tiers;
}

BlockKey PrefixCache::key_before(Node parent) const {
  return parent >= 0 ? keys_[static_cast<size_t>(parent)]
                     : tiers_->keys().root(tree_.salt(parent), tree_.format(parent));
}

void PrefixCache::name(Node node) {
  if (tiers_ != nullptr && !tree_.is_short(node)) {
    keys_[static_cast<size_t>(node)] =
        tiers_->keys().next(key_before(tree_.parent(node)), tree_.tokens(node));
    unsaved_.add(node);
  }
}

void PrefixCache::save(Node node, bool wait) {
  if (tiers_ == nullptr || tree_.is_short(node)) {
    return;
  }
  const BlockId id{keys_[static_cast<size_t>(node)], tree_.grade(node), tree_.level(node)};
  BlockBuffer* const buffer =
      tiers_->has(id.path, id.grade) ? nullptr : tiers_->writer().begin(wait);
  if (buffer == nullptr) {
    return;
  }
  const std::span<const int32_t> tokens = tree_.tokens(node);
  const KvPool pool = arena_.pool();
  buffer->id = id;
  buffer->tokens.assign(tokens.begin(), tokens.end());
  buffer->pages = static_cast<size_t>(prefix_block_bytes(pool, block_of(node)));
  write_prefix_block(pool, block_of(node), buffer->room.first(buffer->pages));
  tiers_->writer().put(buffer);
}

bool PrefixCache::save_some(int32_t most) {
  if (tiers_ == nullptr || !tiers_->durable()) {
    return false;
  }
  for (; most > 0 && !unsaved_.empty() && !tiers_->writer().half_full(); --most) {
    const Node node = unsaved_.take();
    if (node != PrefixTree::kNone) {
      save(node, false);
    }
  }
  return !unsaved_.empty();
}

// The blocks that were used last are written last, so they are dropped last.
void PrefixCache::save_all() {
  if (tiers_ == nullptr || !tiers_->durable()) {
    return;
  }
  unpin(Time::max());
  std::vector<Node> nodes;
  for (Node node = tree_.mru(); node != PrefixTree::kNone; node = tree_.less_recent(node)) {
    nodes.push_back(node);
  }
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    save(*node, true);
  }
  tiers_->writer().drain();
}

bool PrefixCache::is_continued(const KvPrompt& prompt, int32_t tokens, const KvMatch& match) const {
  if (tiers_ == nullptr || (match.blocks + 1) * prefix_block_tokens() > tokens) {
    return false;
  }
  const BlockKey before = key_behind(prompt, match);
  return tiers_->has(tiers_->keys().next(before, block(prompt.tokens, match.blocks)),
                     accepted_by(prompt));
}

BlockKey PrefixCache::key_behind(const KvPrompt& prompt, const KvMatch& match) const {
  const KvMatch whole = whole_blocks_of(match);
  return whole.blocks > 0
             ? keys_[static_cast<size_t>(whole.node)]
             : tiers_->keys().root(prompt.salt, level_of(prompt.format, prompt.section_pages));
}

void PrefixCache::describe(const KvPrompt& prompt, int32_t tokens, const KvMatch& match,
                           BlockReader::Job& job) const {
  job.accept = accepted_by(prompt);
  BlockKey key = key_behind(prompt, match);
  for (int32_t i = match.blocks; (i + 1) * prefix_block_tokens() <= tokens; ++i) {
    const std::span<const int32_t> of_block = block(prompt.tokens, i);
    key = tiers_->keys().next(key, of_block);
    job.paths.push_back(key);
    job.tokens.insert(job.tokens.end(), of_block.begin(), of_block.end());
  }
}

int64_t PrefixCache::pages_of(const BlockBuffer& stored) const {
  const bool known = stored.id.level < levels_.size() && stored.id.grade < levels_.size() &&
                     stored.id.grade >= stored.id.level;
  const int64_t pages = !known ? -1
                               : pages_in_bytes(arena_.pool(),
                                                {.tier = tier_of(stored.id.level),
                                                 .section = is_section(stored.id.level)},
                                                stored.block().pages);
  return known && pages == tree_.prefix_block_pages(stored.id.level) ? pages : -1;
}

Node PrefixCache::restore(const KvPrompt& prompt, Node before, const BlockBuffer& stored) {
  const uint8_t own = level_of(prompt.format, prompt.section_pages);
  const Node known = before == PrefixTree::kNone ? tree_.find_root(prompt.salt, own) : before;
  const uint64_t hash = PrefixTree::hash(stored.tokens);
  if (tree_.full() || (known != PrefixTree::kNone &&
                       tree_.child(known, stored.tokens, hash) != PrefixTree::kNone)) {
    return PrefixTree::kNone;
  }
  const Node parent = known == PrefixTree::kNone ? tree_.root(prompt.salt, own) : known;
  const Node node = add(parent, {stored.tokens, hash, stored.id.level, false}, stored.id.grade);
  read_prefix_block(arena_.pool(), block_of(node), stored.block().pages);
  tiers_->count_restored();
  return node;
}

void PrefixCache::clear_stores() {
  if (tiers_ != nullptr) {
    tiers_->writer().clear();
  }
}

}  // namespace tessera
