#pragma once

#include <cstdint>
#include <mutex>

#include "engine/engine.h"
#include "engine/kv/kv_cache.h"

namespace tessera {

// The statistics of an engine. The engine thread counts; any thread reads the last published copy.
class EngineCounters {
 public:
  // Publishes the first copy. kv: outlives this. kv_bytes: of the whole cache, on one rank.
  EngineCounters(const KvCache& kv, int64_t kv_bytes);

  // Engine thread.
  EngineStats& counting() { return counting_; }
  void publish();  // with the totals that the KV cache has now

  EngineStats published() const;  // any thread

 private:
  const KvCache& kv_;
  EngineStats counting_;
  mutable std::mutex mutex_;
  EngineStats published_;
};

}  // namespace tessera
