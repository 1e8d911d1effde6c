#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/tier/disk_calls.h"

namespace tessera {

// Time that a prompt's tokens take, computed or read.
struct KvTierRates {
  double token_seconds = 0;                  // to compute one token
  std::array<double, 2> block_seconds = {};  // to read a block: from host memory, from disk
};

// Places for prefix blocks below the KV cache (engine/tier/block_tiers.h).
struct KvTierOptions {
  int64_t host_bytes = 0;                  // of host memory; 0: none
  std::string disk = {};                   // a directory; empty: none
  int64_t disk_bytes = int64_t{10} << 30;  // of all files in it
  // Digest of the model's files. Blocks are found by servers of the same files and settings.
  std::string checkpoint = {};
  // At the end blocks are written for so long after Engine::drain() or, without it, stop(), but for
  // a second at least. The rest is lost.
  std::chrono::milliseconds save_time{30'000};
  std::function<void(std::string_view)> log = [](std::string_view) {};  // receives warnings
  std::optional<KvTierRates> rates = {};  // for tests; no value: measured
  const DiskCalls* calls = nullptr;       // null: the system's. Not owned; outlives the engine.

  bool any() const { return host_bytes > 0 || !disk.empty(); }
};

}  // namespace tessera
