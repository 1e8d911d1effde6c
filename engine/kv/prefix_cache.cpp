#include "engine/kv/prefix_cache.h"

#include "base/check.h"

namespace tessera {

PrefixCache::PrefixCache(KvArena& arena, std::span<const uint8_t> ladder, const Backend& backend,
                         Stream stream, std::span<std::byte> scratch)
    : arena_(arena),
      blocks_(arena, ladder, backend, stream, scratch),
      paths_(blocks_, arena, backend, stream),
      pins_(blocks_, arena.shape().prefix_blocks()),
      hints_(blocks_, pins_, most_blocks_of_path(arena.shape())),
      lookup_(blocks_, arena.shape()),
      seen_(kSeenPathsPerBlock * arena.shape().prefix_blocks()),
      outliner_(blocks_.tree(), most_blocks_of_path(arena.shape())) {}

int64_t PrefixCache::flush() {
  seen_.forget();
  pins_.clear();
  return blocks_.flush();
}

void PrefixCache::save_all(BlockWriter::Time until) {
  if (blocks_.stored().durable()) {
    pins_.clear();
    blocks_.stored().save_all(until);
  }
}

PrefixCacheStats PrefixCache::stats() const {
  PrefixCacheStats stats = blocks_.counts();
  stats.blocks = blocks_.tree().size();
  stats.pages = blocks_.tree().pages();
  stats.unlocked_pages = blocks_.tree().unlocked_pages();
  stats.pinned_blocks = pins_.blocks();
  return stats;
}

void PrefixCache::outline(PrefixOutline& out) {
  outliner_.begin(out);
  for (const SlotPath& path : paths_.all()) {
    if (path.node != PrefixTree::kNone) {
      outliner_.add_path(path.node);
    }
  }
  for (const PrefixPins::Pin& pin : pins_.all()) {
    outliner_.add_path(pin.node);
  }
  outliner_.finish();
  for (PrefixOutline::Block& block : out.blocks) {
    block.format = blocks_.levels().tier(block.format);
    block.grade = blocks_.levels().tier(block.grade);
  }
}

void PrefixCache::add_pages(std::span<KvFormatPages> of_formats) const {
  const PrefixLevels& levels = blocks_.levels();
  for (uint8_t level = 0; level < levels.size(); ++level) {
    of_formats[levels.tier(level)].shared += blocks_.tree().pages_of_level(level);
  }
}

void PrefixCache::check_integrity() const {
  const PrefixTree& tree = blocks_.tree();
  tree.check_integrity();
  for (PrefixTree::Node node = 0; node < arena_.shape().prefix_blocks(); ++node) {
    TESSERA_CHECK(!tree.is_unlocked(node) || arena_.is_sole_owner(node),
                  "a slot holds pages of a block that it has not locked");
  }
  paths_.check_integrity();
  pins_.check_integrity();
}

}  // namespace tessera
