#include "engine/kv/stored_blocks.h"

#include <optional>
#include <span>

#include "base/check.h"
#include "kernels/cpu/pages/prefix_block_bytes.h"

namespace tessera {

using Node = PrefixTree::Node;

BlockTiers::Shape StoredBlocks::shape() const {
  const KvArenaShape& shape = arena_.shape();
  return {max_prefix_block_bytes(arena_.pool()), shape.prefix_block_tokens,
          shape.context / shape.prefix_block_tokens};
}

void StoredBlocks::open(BlockTiers& tiers) {
  TESSERA_CHECK(tree_.size() == 0 && arena_.shape().windowed_rows() == 0,
                "a cache gets its stores while it is empty, and stores no windows");
  const auto blocks = static_cast<size_t>(arena_.shape().prefix_blocks());
  keys_.resize(blocks);
  unsaved_.begin(blocks);
  tiers_ = &tiers;
}

std::span<const int32_t> StoredBlocks::block(const KvPrompt& prompt, int32_t index) const {
  return prompt.run(index * tree_.prefix_block_tokens(), tree_.prefix_block_tokens());
}

BlockKey StoredBlocks::key_before(Node parent) const {
  return parent >= 0 ? keys_[static_cast<size_t>(parent)]
                     : tiers_->keys().root(tree_.salt(parent), tree_.format(parent));
}

BlockKey StoredBlocks::key_behind(const KvPrompt& prompt, const KvMatch& whole) const {
  return whole.blocks() > 0 ? keys_[static_cast<size_t>(whole.node)]
                            : tiers_->keys().root(prompt.salt, levels_.own_of(prompt));
}

void StoredBlocks::added(Node node) {
  if (keeps(node)) {
    keys_[static_cast<size_t>(node)] =
        tiers_->keys().next(key_before(tree_.parent(node)), tree_.tokens(node));
    unsaved_.add(node);
  }
}

void StoredBlocks::replaced(Node node) {
  if (keeps(node)) {
    unsaved_.add(node);
  }
}

bool StoredBlocks::save(Node node, BlockWriter::Time until) {
  if (!keeps(node)) {
    return true;
  }
  const BlockId id{keys_[static_cast<size_t>(node)], tree_.grade(node), tree_.level(node)};
  if (tiers_->has(id.path, id.grade)) {
    return true;
  }
  BlockBuffer* const buffer = tiers_->writer().begin(until);
  if (buffer == nullptr) {
    return false;
  }
  const std::span<const int32_t> tokens = tree_.tokens(node);
  buffer->id = id;
  buffer->name = events_ == nullptr ? 0 : events_->name(node);
  buffer->tokens.assign(tokens.begin(), tokens.end());
  buffer->pages = bytes_of(node);
  write(node, buffer->room.first(buffer->pages));
  tiers_->writer().put(buffer);
  return true;
}

bool StoredBlocks::save_path(Node last) {
  for (Node node = last; node >= 0; node = tree_.parent(node)) {
    if (!keeps(node) || tiers_->has(keys_[static_cast<size_t>(node)], tree_.grade(node))) {
      continue;
    }
    if (tiers_->writer().half_full()) {
      return false;
    }
    save(node);
  }
  return true;
}

bool StoredBlocks::save_some(int32_t most) {
  if (!durable()) {
    return false;
  }
  for (; most > 0 && !unsaved_.empty() && !tiers_->writer().half_full(); --most) {
    const Node node = unsaved_.take();
    if (node != PrefixTree::kNone) {
      save(node);
    }
  }
  return !unsaved_.empty();
}

// The blocks that were used last come first, and of a path the first ones: the time may not suffice
// for all, and a block without those before it is of no use.
void StoredBlocks::save_all(BlockWriter::Time until) {
  int64_t unsaved = 0;
  for (Node node = tree_.mru(); node != PrefixTree::kNone; node = tree_.less_recent(node)) {
    unsaved += save(node, until) ? 0 : 1;
  }
  tiers_->finish(until, unsaved);
}

void StoredBlocks::clear() {
  if (tiers_ != nullptr) {
    tiers_->writer().clear();
  }
}

std::optional<size_t> StoredBlocks::continued_in(const KvPrompt& prompt, int32_t tokens,
                                                 const KvMatch& whole) const {
  if (tiers_ == nullptr || (whole.blocks() + 1) * tree_.prefix_block_tokens() > tokens) {
    return std::nullopt;
  }
  const BlockKey before = key_behind(prompt, whole);
  return tiers_->store_of(tiers_->keys().next(before, block(prompt, whole.blocks())),
                          levels_.accepted_by(prompt));
}

void StoredBlocks::describe(const KvPrompt& prompt, int32_t tokens, const KvMatch& whole,
                            BlockReader::Job& job) const {
  job.accept = levels_.accepted_by(prompt);
  BlockKey key = key_behind(prompt, whole);
  for (int32_t i = whole.blocks(); (i + 1) * tree_.prefix_block_tokens() <= tokens; ++i) {
    const std::span<const int32_t> of_block = block(prompt, i);
    key = tiers_->keys().next(key, of_block);
    job.paths.push_back(key);
    job.tokens.insert(job.tokens.end(), of_block.begin(), of_block.end());
  }
}

int64_t StoredBlocks::pages_of(const BlockBuffer& stored) const {
  const BlockId& id = stored.id;
  if (id.level >= levels_.size() || id.grade >= levels_.size() || id.grade < id.level) {
    return -1;
  }
  const PrefixBlock block{.tier = levels_.tier(id.level), .section = levels_.is_section(id.level)};
  const int64_t pages = pages_in_bytes(arena_.pool(), block, stored.block().pages);
  return pages == tree_.prefix_block_pages(id.level) ? pages : -1;
}

absl::Status StoredBlocks::check_moves() const {
  return any() ? absl::OkStatus()
               : absl::FailedPreconditionError(
                     "prefixes are moved between servers that have a storage tier, by which they "
                     "know their checkpoint: set kv-host-memory or kv-disk");
}

size_t StoredBlocks::bytes_of(Node node) const {
  return static_cast<size_t>(prefix_block_bytes(arena_.pool(), levels_.block_of(tree_, node)));
}

void StoredBlocks::write(Node node, std::span<std::byte> bytes) const {
  write_prefix_block(arena_.pool(), levels_.block_of(tree_, node), bytes);
}

void StoredBlocks::read(const BlockBuffer& stored, const PrefixBlock& block) {
  read_prefix_block(arena_.pool(), block, stored.block().pages);
  tiers_->count_restored();
}

}  // namespace tessera
