#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tier/block_key.h"
#include "engine/tier/block_reader.h"
#include "engine/tier/block_store.h"
#include "engine/tier/block_writer.h"
#include "engine/tier/restore_rates.h"
#include "engine/tier/tier_options.h"
#include "engine/tier/tier_stats.h"
#include "kernels/kv/kv_arena.h"

namespace tessera {

// The stores below the KV cache, the fastest first, with the threads that write and read them. The
// engine's thread copies blocks to and from buffers, and never waits for a store, except at the
// end.
class BlockTiers {
 public:
  struct Shape {
    int64_t block_bytes = 0;  // of the pages of the largest block
    int32_t block_tokens = 0;
    int32_t path_blocks = 0;  // of the longest path
  };
  // fingerprint: of all that the bits of blocks depend on, besides format, salt and tokens.
  // Errors: those of DiskStore::open; InvalidArgument (a host memory that holds no block).
  static absl::StatusOr<std::unique_ptr<BlockTiers>> open(const KvTierOptions& options,
                                                          const Shape& shape,
                                                          std::string_view fingerprint);

  // The same over any stores, at least one of them.
  struct Stores {
    std::unique_ptr<BlockStore> host;  // null: none
    std::unique_ptr<BlockStore> disk;
  };
  static std::unique_ptr<BlockTiers> over(Stores stores, const KvTierOptions& options,
                                          const Shape& shape, std::string_view fingerprint);

  // Returns: the host memory that these options take, with the blocks on their way.
  static int64_t bytes_for(const KvTierOptions& options, const KvArenaShape& shape);

  KeyChain& keys() { return keys_; }
  BlockWriter& writer() { return *writer_; }
  BlockReader& reader() { return *reader_; }

  // Returns: the first store that has a block of that path with a grade of at most `accept`.
  std::optional<size_t> store_of(const BlockKey& path, uint8_t accept) const;
  bool has(const BlockKey& path, uint8_t accept) const {
    return store_of(path, accept).has_value();
  }
  // From now on `events` receives the copies in the stores. Called before the first one is written.
  void report(PrefixEvents& events);
  // True: blocks survive the process, so they are written before they are evicted.
  bool durable() const { return disk_ != nullptr; }
  void erase(const BlockId& id);
  // Writes what is queued until that time, and forgets the rest. unsaved: blocks that found no
  // place in the queue. Called once, at the end.
  void finish(BlockWriter::Time until, int64_t unsaved);

  KvTierStats stats() const;
  // ---- engine thread
  void count_restored() { ++counting_.restored_blocks; }
  void note_step(int64_t tokens, double seconds) { rates_.note_step(tokens, seconds); }
  // Returns: true if reading the blocks of a path from that store takes less time than to compute
  // them. Counts the choice.
  bool chooses_to_read(size_t store, int32_t block_tokens);
  void note_slow_read();
  // Returns: true while the disk does not answer. Tells the log when that changes.
  bool suspended();

 private:
  BlockTiers(const KvTierOptions& options, std::string_view fingerprint)
      : keys_(fingerprint), log_(options.log), rates_(options.rates) {}
  size_t place_of(size_t store) const { return host_ == nullptr ? store + 1 : store; }

  KeyChain keys_;
  const std::function<void(std::string_view)> log_;
  RestoreRates rates_;
  bool told_suspended_ = false;
  BlockStore* host_ = nullptr;  // null: none; likewise disk_
  BlockStore* disk_ = nullptr;
  std::vector<std::unique_ptr<BlockStore>> owned_;
  std::vector<BlockStore*> stores_;
  std::unique_ptr<BlockWriter> writer_;
  std::unique_ptr<BlockReader> reader_;
  KvTierStats counting_;
};

}  // namespace tessera
