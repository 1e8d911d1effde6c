#pragma once

#include <cstdint>
#include <string>

#include "engine/tier/disk_calls.h"

namespace tessera {

// Places for prefix blocks below the KV cache (engine/tier/block_tiers.h).
struct KvTierOptions {
  int64_t host_bytes = 0;                  // of host memory; 0: none
  std::string disk = {};                   // a directory; empty: none
  int64_t disk_bytes = int64_t{10} << 30;  // of all files in it
  // Digest of the model's files. Blocks are found by servers of the same files and settings.
  std::string checkpoint = {};
  const DiskCalls* calls = nullptr;  // null: the system's. Not owned; outlives the engine.

  bool any() const { return host_bytes > 0 || !disk.empty(); }
};

}  // namespace tessera
