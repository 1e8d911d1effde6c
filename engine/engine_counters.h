#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "engine/engine.h"
#include "engine/kv/kv_cache.h"

namespace tessera {

// The statistics of an engine. The engine thread counts; any thread reads the last published copy.
class EngineCounters {
 public:
  // Publishes the first copy. kv: outlives this. kv_bytes: of the whole cache, on one rank.
  // tiers: null: none; outlives this too.
  EngineCounters(const KvCache& kv, const BlockTiers* tiers, int64_t kv_bytes);

  // Engine thread.
  EngineStats& counting() { return counting_; }
  void publish();  // with the totals that the KV cache has now
  // The engine is about to sleep: publishes the outline of the prefix tree, if it has changed.
  void publish_outline();

  EngineStats published() const;  // any thread
  // Any thread. The outline of some step; the next publish() makes a new one. So an engine that is
  // not observed spends no time on it.
  PrefixOutline outline() const;

 private:
  // The counts with which the prefix tree changes.
  struct OutlinedAt {
    int64_t steps = 0;
    int64_t evicted_blocks = 0;
    int64_t pinned_blocks = 0;

    friend bool operator==(const OutlinedAt&, const OutlinedAt&) = default;
  };

  const KvCache& kv_;
  const BlockTiers* const tiers_;
  EngineStats counting_;
  PrefixOutline outlining_;
  OutlinedAt outlined_at_ = {-1, -1, -1};  // the last publish_outline()
  mutable std::atomic<bool> outline_wanted_ = false;
  mutable std::mutex mutex_;
  EngineStats published_;
  PrefixOutline published_outline_;
};

}  // namespace tessera
