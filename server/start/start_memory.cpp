#include "server/start/start_memory.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cpu/threads/core_share.h"
#include "server/base/memory_guard.h"
#include "server/start/host_memory.h"
#include "server/start/request_memory.h"

namespace tessera {
namespace {

// Returns: bytes that this process may still take before the server refuses requests.
int64_t free_of_guard(const Settings& settings) {
  const int64_t limit = settings.max_memory > 0 ? settings.max_memory : memory_limit_of_group();
  return limit > 0 ? std::max<int64_t>(0, limit - anonymous_memory())
                   : std::numeric_limits<int64_t>::max();
}

}  // namespace

EngineOptions with_sizes(const EngineOptions& options, const StartSizes& sizes) {
  EngineOptions sized = options;
  sized.context = sizes.context;
  sized.max_sequences = sizes.sequences;
  sized.max_step_tokens = sizes.step_tokens;
  sized.kv_bytes = sizes.kv_bytes;
  return sized;
}

StartSizes wished_sizes(const Settings& settings) {
  return {.context = settings.context,
          .sequences = settings.max_sequences,
          .step_tokens = settings.max_step_tokens,
          .kv_bytes = settings.engine.kv_bytes};
}

CostOf cost_of(const EngineOptions& options, const StartModel& model) {
  return [&options, &model](const StartSizes& sizes) -> absl::StatusOr<StartCost> {
    EngineOptions one = with_sizes(options, sizes);
    one.kv_bytes = 0;
    TESSERA_ASSIGN_OR_RETURN(const StartBytes bytes, start_bytes(one, model));
    const int64_t slot = bytes.kv.slot_bytes();
    return StartCost{.fixed = bytes.model() + bytes.stores,
                     .slot = slot,
                     .pages = bytes.kv.total_bytes() / bytes.kv.slots - slot,
                     .swaps = bytes.swap > 0 && model.backend.memory == nullptr};
  };
}

int64_t free_device_memory(const CudaLibrary& cuda) {
  const bool tells = cuda.probe != nullptr && cuda.probe->memory != nullptr;
  return tells ? cuda.probe->memory().free : -1;
}

MachineMemory machine_memory(const Settings& settings, int64_t free_on_device,
                             Communicator* ranks) {
  MachineMemory memory{.free = free_on_device,
                       .requests = static_cast<int64_t>(
                           request_memory_of(settings, settings.http.max_connections).total()),
                       .is_device = free_on_device >= 0};
  if (!memory.is_device) {
    memory.free = std::min(free_host_memory(), free_of_guard(settings));
  }
  if (ranks == nullptr) return memory;
  const int64_t own = memory.is_device ? memory.free : memory.free / local_ranks(*ranks);
  std::vector<int64_t> all(static_cast<std::size_t>(ranks->ranks()));
  ranks->all_gather({&own, 1}, all);
  memory.free = *std::min_element(all.begin(), all.end());
  return memory;
}

}  // namespace tessera
