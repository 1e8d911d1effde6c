#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace tessera {

// Input of print_cache().
struct CacheReport {
  const EngineStats& stats;
  const EngineOptions& options;  // of the engine
  const PrefixOutline& outline;
  std::vector<std::string> presets;  // that requests may name, the default first
  // Blocks with this mark are listed (PrefixOutline::salt_mark), others only counted: the blocks of
  // one tenant are hidden from another.
  uint64_t salt_mark = 0;
};

// Returns: the reply of GET /v1/cache, our own format (docs/howto/chat-page.md). It has at most
// PrefixOutline::kMaxBlocks blocks of at most 40 bytes, and 8 KiB besides.
std::string print_cache(const CacheReport& report);

}  // namespace tessera
