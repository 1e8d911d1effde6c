#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tier/block_key.h"
#include "engine/tier/prefix_events.h"
#include "engine/tier/tier_stats.h"

namespace tessera {

// A prefix block outside of the pool. pages: see kernels/cpu/pages/prefix_block_bytes.h. Owns
// nothing.
struct StoredBlock {
  BlockId id;
  std::span<const int32_t> tokens;
  std::span<const std::byte> pages;
  uint64_t name = 0;  // in PrefixEvents; 0: its copies are not told
};

// A place for prefix blocks below the pool, bounded in bytes. Blocks that were not used for the
// longest time are dropped first. Thread-safe: one thread writes while others find and read.
class BlockStore {
 public:
  virtual ~BlockStore() = default;

  // Keeps a copy of a block. Does nothing if it has a block of this path of the same grade or a
  // finer one.
  // Errors: ResourceExhausted (larger than the store, or the disk is full), Unavailable (the disk
  // has failed). The store is as before.
  virtual absl::Status put(const StoredBlock& block) = 0;

  // Returns: the finest block of a path whose grade is at most `accept`. It may be gone when it is
  // read. A false find is possible and is rare; read() then reports NotFound.
  virtual std::optional<BlockId> find(const BlockKey& path, uint8_t accept) const = 0;

  // Copies the pages of a block, and counts it as used.
  // Returns: their bytes.
  // Errors: NotFound; DataLoss (its checksum or its tokens differ: it is dropped); Unavailable (the
  // disk has failed); OutOfRange (more than pages.size() bytes).
  virtual absl::StatusOr<size_t> read(const BlockId& id, std::span<const int32_t> tokens,
                                      std::span<std::byte> pages) = 0;

  // Forgets a block, for example because its bytes do not fit the pool.
  virtual void erase(const BlockId& id) = 0;
  virtual void clear() = 0;

  // Makes all blocks durable that were put, where the store is.
  virtual void sync() = 0;

  virtual BlockStoreStats stats() const = 0;

  // From now on `events` receives the copies that are written and dropped.
  // Requires: the store is not used yet; `events` outlives this.
  void report(PrefixEvents& events, PrefixEvents::Store as) {
    events_ = &events;
    as_ = as;
  }

 protected:
  // Returns: the name to tell when the block is dropped; 0: it is not told.
  uint64_t tell_stored(uint64_t name) const {
    return events_ != nullptr && name != 0 && events_->stored_in(as_, name) ? name : 0;
  }
  void tell_dropped(uint64_t name) const {
    if (name != 0) {
      events_->removed_from(as_, name);
    }
  }

 private:
  PrefixEvents* events_ = nullptr;
  PrefixEvents::Store as_ = PrefixEvents::Store::host;
};

}  // namespace tessera
