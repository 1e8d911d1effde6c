#include "server/start/start_fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status_macros.h"
#include "engine/engine.h"

namespace tessera {
namespace {

constexpr int32_t kContextUnit = 256;  // a shortened context is a multiple of this

// Parts of a device's memory that pages leave to recorded steps: one of so many.
constexpr int64_t kDeviceReserve = 8;

// How much of the machine's memory the KV cache may take.
struct KvRoom {
  int64_t usual = 0;  // by default
  int64_t most = 0;   // for the sake of one whole context
  int64_t all = 0;    // for the sake of the shortest context
};

class StartFit {
 public:
  StartFit(const StartSizes& wishes, int32_t model_context, const MachineMemory& memory,
           const CostOf& cost_of)
      : wishes_(wishes), memory_(memory), cost_of_(cost_of), model_context_(model_context) {}

  absl::StatusOr<StartSizes> choose() const {
    TESSERA_ASSIGN_OR_RETURN(const Sized sized, sized_for(context_that_fits()));
    StartSizes sizes = sized.sizes;
    if (wishes_.kv_bytes > 0) return sizes;
    const KvRoom room = room_beside(sized.cost);
    const bool whole = !memory_.is_device && wishes_.context > 0 && wishes_.sequences > 0;
    TESSERA_RETURN_IF_ERROR(check(sized, whole, room));
    if (memory_.is_device) return sizes;
    sizes.kv_bytes = sized.cost.kv(sizes.sequences, sizes.sequences);
    if (!whole) {
      const int64_t one = sized.cost.kv(sizes.sequences, 1);
      sizes.kv_bytes = std::min(sizes.kv_bytes, std::max(room.usual, one));
    }
    return sizes;
  }

 private:
  struct Sized {
    StartSizes sizes;
    StartCost cost;
  };

  // Returns: sizes for a context, without kv_bytes where these are open, and their cost.
  absl::StatusOr<Sized> sized_for(int32_t context) const {
    const EngineOptions usual;
    Sized sized{.sizes = wishes_, .cost = {}};
    sized.sizes.context = context;
    if (wishes_.sequences == 0) {
      sized.sizes.sequences = wishes_.step_tokens > 0
                                  ? std::min(usual.max_sequences, wishes_.step_tokens)
                                  : usual.max_sequences;
    }
    if (wishes_.step_tokens == 0) {
      sized.sizes.step_tokens = std::max(usual.max_step_tokens, sized.sizes.sequences);
    }
    TESSERA_ASSIGN_OR_RETURN(sized.cost, cost_of_(sized.sizes));
    if (wishes_.sequences == 0) {
      const int64_t bytes = wishes_.kv_bytes > 0 ? wishes_.kv_bytes : room_beside(sized.cost).usual;
      const int64_t slots = bytes / kSlotShare / std::max<int64_t>(sized.cost.slot, 1);
      sized.sizes.sequences =
          static_cast<int32_t>(std::clamp<int64_t>(slots, 1, sized.sizes.sequences));
    }
    return sized;
  }

  KvRoom room_beside(const StartCost& cost) const {
    const int64_t left = std::max<int64_t>(0, memory_.free - cost.fixed);
    if (memory_.is_device) {
      const int64_t all = left - left / kDeviceReserve;
      return {.usual = all, .most = all, .all = all};
    }
    // Requests without room are refused (MemoryGuard), so a machine that is almost full serves
    // fewer of them.
    const int64_t beside = left - std::min(memory_.requests, left / 2);
    const int64_t all = cost.swaps ? beside / 5 * 4 : beside;
    return {.usual = all / kUsualKvShare, .most = all / kMostKvShare, .all = all};
  }

  // Returns: the longest context whose one sequence fits, at least the least one.
  int32_t context_that_fits() const {
    if (wishes_.context > 0) return wishes_.context;
    return longest_context_that(model_context_, [this](int32_t context) {
      const absl::StatusOr<Sized> sized = sized_for(context);
      if (!sized.ok()) return false;
      const int64_t most = wishes_.kv_bytes > 0 ? wishes_.kv_bytes : room_beside(sized->cost).most;
      return sized->cost.kv(sized->sizes.sequences, 1) <= most;
    });
  }

  // Errors: the machine has too little memory for sizes with a KV cache that the start chooses.
  absl::Status check(const Sized& sized, bool whole, const KvRoom& room) const {
    const int32_t sequences = sized.sizes.sequences;
    const int64_t kv = sized.cost.kv(sequences, whole ? sequences : 1);
    // Sizes that were asked for may take the part of requests.
    const int64_t left = std::max<int64_t>(0, memory_.free - sized.cost.fixed);
    const int64_t kept = whole ? 0 : left - room.all;
    if (sized.cost.fixed <= memory_.free && kv <= left - kept) return absl::OkStatus();
    const int64_t needed = sized.cost.fixed + kv + kept;
    return absl::ResourceExhaustedError(fmt::format(
        "memory: the model takes {} MiB with its workspace, and {} of {} tokens {} MiB of KV "
        "cache; "
        "with requests {} bytes ({} MiB) are needed, and {} bytes ({} MiB) are free: lower "
        "--context or --max-sequences, or choose --weights with fewer bits (see --plan)",
        sized.cost.fixed >> 20, whole ? fmt::format("{} sequences", sequences) : "one sequence",
        sized.sizes.context, kv >> 20, needed, needed >> 20, memory_.free, memory_.free >> 20));
  }

  const StartSizes& wishes_;
  const MachineMemory& memory_;
  const CostOf& cost_of_;
  const int32_t model_context_;
};

}  // namespace

int32_t longest_context_that(int32_t model_context, const std::function<bool(int32_t)>& fits) {
  if (model_context <= kLeastContext || fits(model_context)) return model_context;
  int32_t units = kLeastContext / kContextUnit;
  for (int32_t step = 1 << 22; step > 0; step /= 2) {
    const int64_t context = (int64_t{units} + step) * kContextUnit;
    if (context < model_context && fits(static_cast<int32_t>(context))) units += step;
  }
  return units * kContextUnit;
}

absl::StatusOr<StartSizes> fit_start(const StartSizes& wishes, int32_t model_context,
                                     const MachineMemory& memory, const CostOf& cost_of) {
  if (wishes.context > model_context) {
    return absl::InvalidArgumentError(fmt::format(
        "context is {}, but the model was made for {} tokens", wishes.context, model_context));
  }
  return StartFit(wishes, model_context, memory, cost_of).choose();
}

std::string describe(const StartSizes& sizes, const StartSizes& wishes, int32_t model_context,
                     const MachineMemory& memory) {
  const auto mib = [](int64_t bytes) { return bytes >> 20; };
  const std::string context = wishes.context > 0 ? fmt::format("{} tokens as set", sizes.context)
                              : sizes.context == model_context
                                  ? fmt::format("the model's {} tokens", sizes.context)
                                  : fmt::format("{} of the model's {} tokens, as memory allows",
                                                sizes.context, model_context);
  const std::string kv = wishes.kv_bytes > 0 ? fmt::format("{} MiB as set", mib(sizes.kv_bytes))
                         : memory.is_device  ? std::string("all free memory of the device")
                                             : fmt::format("{} MiB", mib(sizes.kv_bytes));
  return fmt::format(
      "context {}, KV cache {}, {} sequences, steps of {} tokens; {} MiB of memory were free "
      "(--context, --kv-memory, --max-sequences, --max-step-tokens)",
      context, kv, sizes.sequences, sizes.step_tokens, mib(memory.free));
}

}  // namespace tessera
