#include "engine/tier/block_tiers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/tier/disk_store.h"
#include "engine/tier/memory_store.h"

namespace tessera {
namespace {

// Of blocks on their way, in each direction.
constexpr int64_t kQueueBytes = int64_t{64} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<BlockTiers>> BlockTiers::open(const KvTierOptions& options,
                                                             const Shape& shape,
                                                             std::string_view fingerprint) {
  Stores stores;
  if (options.host_bytes > 0) {
    const int64_t least =
        shape.block_bytes + MemoryStore::kOverhead + shape.block_tokens * int64_t{sizeof(int32_t)};
    if (options.host_bytes < least) {
      return absl::InvalidArgumentError(absl::StrCat("kv-host-memory is ", options.host_bytes,
                                                     " bytes, and one block of the prefix cache "
                                                     "may take ",
                                                     least));
    }
    stores.host = std::make_unique<MemoryStore>(options.host_bytes);
  }
  if (!options.disk.empty()) {
    TESSERA_ASSIGN_OR_RETURN(stores.disk,
                             DiskStore::open({options.disk, options.disk_bytes, options.calls}));
  }
  return over(std::move(stores), options, shape, fingerprint);
}

std::unique_ptr<BlockTiers> BlockTiers::over(Stores stores, const KvTierOptions& options,
                                             const Shape& shape, std::string_view fingerprint) {
  auto tiers = std::unique_ptr<BlockTiers>(new BlockTiers(options, fingerprint));
  tiers->host_ = stores.host.get();
  tiers->disk_ = stores.disk.get();
  for (std::unique_ptr<BlockStore>* const store : {&stores.host, &stores.disk}) {
    if (*store != nullptr) {
      tiers->stores_.push_back(store->get());
      tiers->owned_.push_back(std::move(*store));
    }
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

std::optional<size_t> BlockTiers::store_of(const BlockKey& path, uint8_t accept) const {
  if (writer_->clearing()) {
    return std::nullopt;
  }
  const auto store = std::ranges::find_if(
      stores_, [&](const BlockStore* one) { return one->find(path, accept).has_value(); });
  return store == stores_.end() ? std::nullopt
                                : std::optional(static_cast<size_t>(store - stores_.begin()));
}

void BlockTiers::erase(const BlockId& id) {
  for (BlockStore* const store : stores_) {
    store->erase(id);
  }
}

void BlockTiers::report(PrefixEvents& events) {
  if (host_ != nullptr) {
    host_->report(events, PrefixEvents::Store::host);
  }
  if (disk_ != nullptr) {
    disk_->report(events, PrefixEvents::Store::disk);
  }
}

void BlockTiers::finish(BlockWriter::Time until, int64_t unsaved) {
  writer_->drain(until);
  counting_.unsaved_blocks = unsaved + writer_->give_up();
  if (counting_.unsaved_blocks > 0) {
    log_(absl::StrCat(counting_.unsaved_blocks,
                      " blocks were not written in the time that drain-timeout gives"));
  }
}

bool BlockTiers::chooses_to_read(size_t store, int32_t block_tokens) {
  const double seconds = reader_->stats().block_seconds[store].value();
  const bool reads = rates_.reads(place_of(store), seconds, block_tokens);
  ++(reads ? counting_.chosen_reads : counting_.chosen_computes);
  return reads;
}

void BlockTiers::note_slow_read() {
  ++counting_.slow_reads;
  reader_->note_timeout();
}

bool BlockTiers::suspended() {
  const bool suspended = reader_->suspended();
  if (suspended != told_suspended_) {
    log_(suspended ? "the disk does not answer: prompts are computed until it does"
                   : "the disk answers again");
  }
  told_suspended_ = suspended;
  return suspended;
}

KvTierStats BlockTiers::stats() const {
  KvTierStats stats = counting_;
  stats.host = host_ == nullptr ? BlockStoreStats{} : host_->stats();
  stats.disk = disk_ == nullptr ? BlockStoreStats{} : disk_->stats();
  const BlockWriter::Stats written = writer_->stats();
  stats.written_blocks = written.blocks;
  stats.written_bytes = written.bytes;
  stats.unwritten_blocks = written.dropped;
  stats.queued_blocks = written.queued;
  const BlockReader::Stats read = reader_->stats();
  stats.host_read_blocks = host_ == nullptr ? 0 : read.blocks[0];
  stats.disk_read_blocks = host_ == nullptr ? read.blocks[0] : read.blocks[1];
  stats.read_bytes = read.bytes;
  stats.read_seconds = read.seconds;
  for (size_t store = 0; store < stores_.size(); ++store) {
    (place_of(store) == 0 ? stats.host_block_seconds : stats.disk_block_seconds) =
        read.block_seconds[store].value();
  }
  stats.token_seconds = rates_.token_seconds();
  stats.suspended = reader_->suspended();
  stats.suspensions = read.suspensions;
  return stats;
}

}  // namespace tessera
