#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tier/block_key.h"
#include "engine/tier/block_reader.h"
#include "engine/tier/block_store.h"
#include "engine/tier/block_writer.h"
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

  // Returns: the host memory that these options take, with the blocks on their way.
  static int64_t bytes_for(const KvTierOptions& options, const KvArenaShape& shape);

  KeyChain& keys() { return keys_; }
  BlockWriter& writer() { return *writer_; }
  BlockReader& reader() { return *reader_; }

  // Returns: true if a store has a block of that path with a grade of at most `accept`.
  bool has(const BlockKey& path, uint8_t accept) const;
  // True: blocks survive the process, so they are written before they are evicted.
  bool durable() const { return disk_ != nullptr; }
  void erase(const BlockId& id);

  KvTierStats stats() const;
  // Engine thread.
  void count_restored() { ++counting_.restored_blocks; }
  void count_slow_read() { ++counting_.slow_reads; }

 private:
  explicit BlockTiers(std::string_view fingerprint) : keys_(fingerprint) {}

  KeyChain keys_;
  BlockStore* host_ = nullptr;  // null: none; likewise disk_
  BlockStore* disk_ = nullptr;
  std::vector<std::unique_ptr<BlockStore>> owned_;
  std::vector<BlockStore*> stores_;
  std::unique_ptr<BlockWriter> writer_;
  std::unique_ptr<BlockReader> reader_;
  KvTierStats counting_;
};

}  // namespace tessera
