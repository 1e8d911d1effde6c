#pragma once

#include <cstdint>

namespace tessera::simt {

inline constexpr int32_t kWarp = 32;  // lanes

// Blocks of a cluster at most: the size that every GPU with clusters can launch.
inline constexpr int32_t kMaxCluster = 8;

struct LaunchShape {
  int32_t grid_x = 1;  // no block is launched if one of these is 0
  int32_t grid_y = 1;  // at most 65535; so grid_x takes a number of sequences
  int32_t threads = kWarp;
  int32_t shared_bytes = 0;
  // Blocks of a cluster, consecutive in y; grid_y is a multiple of it. At most
  // DeviceLimits::cluster of the stream's device.
  int32_t cluster = 1;
  // The number of blocks of a multiprocessor depends on its shared memory, so the first-level cache
  // leaves them as much as it can.
  bool most_shared = false;
};

// Abilities of a device that decide the shapes of launches.
struct DeviceLimits {
  int32_t multiprocessors = 0;
  int32_t cluster = 1;       // blocks of a cluster at most; 1: the device has no clusters
  int32_t shared_bytes = 0;  // shared memory of a multiprocessor
};

}  // namespace tessera::simt
