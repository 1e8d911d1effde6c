#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace tessera {

// Journal of the prefix blocks that enter and leave the cache, for routers that know the blocks of
// each replica, and of the copies in the stores below it (engine/tier). The engine thread and those
// of the stores write; one other thread reads.
//
// A block is named by the hash of its path from the root, so that equal paths have equal names in
// all replicas. The journal's memory is allocated once. A block that does not fit, because the
// reader is slow, never gets a name, and nor do those behind it. Removals of named blocks always
// fit. So a router may miss a block, but it never believes in one that has gone. The same holds for
// each store: its copies have the names that the blocks had in the cache. What a store has from an
// earlier process is not told.
class PrefixEvents {
 public:
  static constexpr size_t kMaxStored = size_t{1} << 13;  // unread events, besides removals
  static constexpr size_t kMaxTokens = size_t{1} << 18;  // of unread events

  struct Event {
    bool stored = false;  // else: removed
    uint64_t block = 0;
    uint64_t parent = 0;  // 0: the first block of its path; valid if stored
  };
  enum class Store : uint8_t { host, disk };
  struct StoreEvent {  // a copy was written or dropped
    Store store = Store::host;
    bool stored = false;
    uint64_t block = 0;
  };
  struct Batch {
    std::vector<StoreEvent> of_stores;  // in the order in which they happened
    std::vector<Event> events;          // likewise
    std::vector<int32_t> tokens;        // of the stored blocks, in the same order
    int64_t lost = 0;                   // blocks that did not fit
  };

  // ---- engine thread; allocates nothing after begin()

  // Must be called once, before the others. blocks: maximum number of blocks at one time.
  void begin(int32_t blocks, int32_t block_tokens);
  // A block was inserted. node: its handle. parent: the handle of the block before it; negative: it
  // is the first of its path. `tokens` are those of the block.
  void stored(int32_t node, int32_t parent, std::span<const int32_t> tokens);
  void removed(int32_t node);
  // A block that is not for routers was inserted; nor are those behind it.
  void stored_unnamed(int32_t node) { names_[static_cast<size_t>(node)] = 0; }

  uint64_t name(int32_t node) const { return names_[static_cast<size_t>(node)]; }  // 0: none

  // ---- threads of the stores
  // Returns: false if the event does not fit. Then the store does not tell the removal either.
  bool stored_in(Store store, uint64_t name);
  void removed_from(Store store, uint64_t name);

  int32_t block_tokens() const { return block_tokens_; }  // 0 before begin()

  // ---- the reading thread

  // Waits for events. `batch` then has all those since the last call.
  // Returns: false after close(), when there are none left.
  bool take(Batch& batch);
  void close();  // any thread

 private:
  void reserve(Batch& batch) const;

  int32_t block_tokens_ = 0;
  std::vector<uint64_t> names_;  // [blocks]; 0: none

  std::mutex mutex_;  // guards the following
  std::condition_variable filled_;
  Batch filling_;
  bool closed_ = false;
};

}  // namespace tessera
