#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "kernels/device_probe.h"
#include "models/config/model_config.h"

namespace tessera {

// Parts of a start that a device's memory must hold besides weights, workspace and KV cache.
struct StartMemory {
  int64_t sampling = 0;    // bytes of the sampler
  int64_t recordings = 0;  // recorded decode steps
  int64_t launches = 0;    // of kernels, in one recording
};

// Assumptions. The log of a start shows the memory that is free at its end: on an H100 the reserve,
// to 7 MiB. A launch of a recording has up to 4 KiB of arguments, and its node. The reserve is for
// later allocations of libraries, such as NCCL's connections.
inline constexpr int64_t kRecordedLaunchBytes = 8 << 10;
inline constexpr int64_t kReservedShare = 32;  // a 32nd of the device's memory

// Returns: bytes of the largest KV cache that leaves room for the rest of the start.
// Errors: ResourceExhausted, with the numbers, if nothing is left.
absl::StatusOr<int64_t> free_kv_bytes(const DeviceMemoryUse& use, const StartMemory& start);

// Returns: the same for an engine with these options: EngineOptions::kv_bytes where it is 0. With
// several ranks, the least of all, since their caches are equal; collective then.
// Requires: the rank's part of the model is loaded. `model`: of one rank.
// Errors: also those of the options.
absl::StatusOr<int64_t> free_kv_bytes(const DeviceMemoryUse& use, const EngineOptions& options,
                                      const ModelConfig& model, const Backend& backend,
                                      Stream stream);

}  // namespace tessera
