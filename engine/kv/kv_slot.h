#pragma once

#include <cstdint>
#include <utility>

namespace tessera {

class KvCache;

// An open slot of a KvCache, with one owner. Only the cache makes one. Released exactly once: by
// KvCache::release, which takes it from its owner, or else by its destructor. Functions that use a
// slot take a KvSlot and no number, so a released slot has no name.
// Requires: the cache outlives it. A moved-from handle is empty: it may be assigned or destroyed.
class KvSlot {
 public:
  KvSlot(KvSlot&& other) noexcept
      : cache_(std::exchange(other.cache_, nullptr)), index_(other.index_) {}
  KvSlot& operator=(KvSlot&& other) noexcept {
    KvSlot taken(std::move(other));
    std::swap(cache_, taken.cache_);
    std::swap(index_, taken.index_);
    return *this;
  }
  ~KvSlot();

  // The slot's number in page tables, for ops.
  // Requires: not empty.
  int32_t index() const;

 private:
  friend class KvCache;
  KvSlot(KvCache& cache, int32_t index) : cache_(&cache), index_(index) {}

  KvCache* cache_;  // null: empty
  int32_t index_;
};

// A slot, and the tokens that it must have room for: pages for the groups that close below them, in
// every layer and KV head.
struct KvReservation {
  const KvSlot& slot;
  int32_t tokens = 0;  // of the whole sequence, those stored already included
};

// A fork: slot `target` begins with the first `tokens` tokens of slot `source`.
struct KvCopy {
  const KvSlot& source;
  const KvSlot& target;
  int32_t tokens = 0;
};

}  // namespace tessera
