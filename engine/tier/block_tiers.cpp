#include "engine/tier/block_tiers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/tier/disk_store.h"
#include "engine/tier/memory_store.h"
#include "models/status_macros.h"

namespace tessera {
namespace {

// Of blocks on their way, in each direction.
constexpr int64_t kQueueBytes = int64_t{64} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<BlockTiers>> BlockTiers::open(const KvTierOptions& options,
                                                             const Shape& shape,
                                                             std::string_view fingerprint) {
  auto tiers = std::unique_ptr<BlockTiers>(new BlockTiers(fingerprint));
  if (options.host_bytes > 0) {
    const int64_t least =
        shape.block_bytes + MemoryStore::kOverhead + shape.block_tokens * int64_t{sizeof(int32_t)};
    if (options.host_bytes < least) {
      return absl::InvalidArgumentError(absl::StrCat("kv-host-memory is ", options.host_bytes,
                                                     " bytes, and one block of the prefix cache "
                                                     "may take ",
                                                     least));
    }
    tiers->owned_.push_back(std::make_unique<MemoryStore>(options.host_bytes));
    tiers->host_ = tiers->owned_.back().get();
  }
  if (!options.disk.empty()) {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<DiskStore> disk,
                             DiskStore::open({options.disk, options.disk_bytes, options.calls}));
    tiers->owned_.push_back(std::move(disk));
    tiers->disk_ = tiers->owned_.back().get();
  }
  for (const auto& store : tiers->owned_) {
    tiers->stores_.push_back(store.get());
  }
  tiers->writer_ = std::make_unique<BlockWriter>(tiers->stores_, kQueueBytes, shape.block_bytes,
                                                 shape.block_tokens);
  tiers->reader_ = std::make_unique<BlockReader>(
      tiers->stores_,
      BlockReader::Shape{kQueueBytes, shape.block_bytes, shape.block_tokens, shape.path_blocks});
  return tiers;
}

int64_t BlockTiers::bytes_for(const KvTierOptions& options, const KvArenaShape& shape) {
  if (!options.any() || shape.prefix_block_tokens == 0) {
    return 0;
  }
  const int64_t block_bytes =
      shape.slot_rows() *
      (int64_t{sizeof(int32_t)} + shape.max_prefix_block_pages() * shape.page_bytes);
  return options.host_bytes + 2 * BlockBuffers::count(kQueueBytes, block_bytes) * block_bytes;
}

bool BlockTiers::has(const BlockKey& path, uint8_t accept) const {
  return !writer_->clearing() && std::ranges::any_of(stores_, [&](const BlockStore* store) {
    return store->find(path, accept).has_value();
  });
}

void BlockTiers::erase(const BlockId& id) {
  for (BlockStore* const store : stores_) {
    store->erase(id);
  }
}

KvTierStats BlockTiers::stats() const {
  KvTierStats stats = counting_;
  stats.host = host_ == nullptr ? BlockStoreStats{} : host_->stats();
  stats.disk = disk_ == nullptr ? BlockStoreStats{} : disk_->stats();
  const BlockWriter::Stats written = writer_->stats();
  stats.written_blocks = written.blocks;
  stats.written_bytes = written.bytes;
  stats.unwritten_blocks = written.dropped;
  const BlockReader::Stats read = reader_->stats();
  stats.host_read_blocks = host_ == nullptr ? 0 : read.blocks[0];
  stats.disk_read_blocks = host_ == nullptr ? read.blocks[0] : read.blocks[1];
  stats.read_bytes = read.bytes;
  stats.read_seconds = read.seconds;
  return stats;
}

}  // namespace tessera
