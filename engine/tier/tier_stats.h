#pragma once

#include <cstdint>

namespace tessera {

struct BlockStoreStats {
  int64_t limit = 0;  // bytes
  int64_t bytes = 0;  // in use, with all that the store keeps beside the blocks
  int64_t blocks = 0;
  int64_t dropped_blocks = 0;  // the least recently used, to stay below the limit
  int64_t damaged_blocks = 0;  // found with another checksum, or with other tokens
  int64_t read_errors = 0;
  int64_t write_errors = 0;
};

// Of all stores below the KV cache (engine/tier/block_tiers.h).
struct KvTierStats {
  BlockStoreStats host;
  BlockStoreStats disk;
  int64_t written_blocks = 0;
  int64_t written_bytes = 0;
  int64_t unwritten_blocks = 0;  // because the queue was full
  int64_t queued_blocks = 0;     // on their way to the stores
  int64_t unsaved_blocks = 0;    // that the end of the engine left unwritten
  int64_t host_read_blocks = 0;
  int64_t disk_read_blocks = 0;
  int64_t read_bytes = 0;
  double read_seconds = 0;
  // Of the last reads: seconds for a block of each store; 0: not known yet. Of the last steps:
  // seconds to compute a token of a prompt.
  double host_block_seconds = 0;
  double disk_block_seconds = 0;
  double token_seconds = 0;
  int64_t chosen_reads = 0;     // paths in a store that were read
  int64_t chosen_computes = 0;  // and those that were computed, because that takes less time
  bool suspended = false;       // the disk does not answer, so no prompt waits for it
  int64_t suspensions = 0;
  int64_t restored_blocks = 0;  // that entered the prefix cache again
  int64_t slow_reads = 0;       // paths that were computed because the disk took too long
};

}  // namespace tessera
