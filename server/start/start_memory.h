#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/start_bytes.h"
#include "kernels/communicator.h"
#include "kernels/cuda_library.h"
#include "server/settings/settings.h"
#include "server/start/start_fit.h"

namespace tessera {

// Returns: settings.engine with the sizes of `sizes`.
EngineOptions with_sizes(const EngineOptions& options, const StartSizes& sizes);

// Returns: the sizes in the settings.
StartSizes wished_sizes(const Settings& settings);

// Returns: the cost of `options` with other sizes. Neither is owned.
CostOf cost_of(const EngineOptions& options, const StartModel& model);

// Returns: bytes that a device has free; -1 without a device, or if it does not tell.
int64_t free_device_memory(const CudaLibrary& cuda);

// Returns: memory of this machine for one rank: on a CPU the bytes that the system, its control
// groups and --max-memory leave, divided among the ranks of the machine; the least of all ranks.
// Collective over `ranks` (null: one process has the whole model).
// free_on_device: bytes; below 0: the device is a CPU, or does not tell
MachineMemory machine_memory(const Settings& settings, int64_t free_on_device, Communicator* ranks);

}  // namespace tessera
