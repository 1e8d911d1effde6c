#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// Sizes of an engine. In a wish, 0 is a size that the start may choose.
struct StartSizes {
  int32_t context = 0;      // tokens of the longest sequence
  int32_t sequences = 0;    // that run at once
  int32_t step_tokens = 0;  // tokens of one step
  int64_t kv_bytes = 0;     // of the KV cache

  friend bool operator==(const StartSizes&, const StartSizes&) = default;
};

// Bytes that a start with some sizes takes on one rank.
struct StartCost {
  int64_t fixed = 0;   // weights, workspace and sampling
  int64_t slot = 0;    // residual buffers and tables of one sequence
  int64_t pages = 0;   // pages of one whole context
  bool swaps = false;  // a quarter of the KV cache more, for swapped-out sequences

  // Returns: bytes of a KV cache with `sequences` slots that holds so many whole contexts.
  int64_t kv(int64_t sequences, int64_t contexts) const {
    return sequences * slot + contexts * pages;
  }
};

// Reads `context`, `sequences` and `step_tokens`, which are chosen.
using CostOf = std::function<absl::StatusOr<StartCost>(const StartSizes&)>;

// Memory of one rank. On a CPU, requests take theirs beside the KV cache. On a device there is
// nothing beside it.
struct MachineMemory {
  int64_t free = 0;      // bytes, before the model is loaded
  int64_t requests = 0;  // most bytes of requests
  bool is_device = false;
};

// A machine shares its memory with other programs, and the prefix cache fills all of its own with
// time. So the default of the KV cache is this part of the memory that is free beside the model and
// requests, or up to the next one where a whole context needs it.
inline constexpr int64_t kUsualKvShare = 4;  // one of so many
inline constexpr int64_t kMostKvShare = 2;

// Buffers of sequences take at most this part of the KV cache, one of so many, unless
// --max-sequences is set.
inline constexpr int64_t kSlotShare = 4;

// A start shortens the context down to this, or to the model's own if that is shorter. It may take
// all memory that is free beside the model and requests.
inline constexpr int32_t kLeastContext = 2048;

// Returns: the longest context, up to the model's, that fits, as far as it is a multiple of 256; at
// least kLeastContext or the model's own, which may not fit.
// Requires: with a context that fits, shorter ones fit too.
int32_t longest_context_that(int32_t model_context, const std::function<bool(int32_t)>& fits);

// Chooses the sizes that `wishes` leave open:
//   context      the model's own, or the longest whose one sequence fits into the KV cache
//   kv_bytes     see kUsualKvShare, and at most room for all sequences' whole contexts; exactly
//                that if the wishes have context and sequences. On a device: 0, all that is free
//   sequences    64, or fewer: see kSlotShare
//   step_tokens  512, or as many as sequences if they are more
// Sizes that are not open stay as they are.
// model_context: tokens that the model was made for
// Errors: InvalidArgument for a context beyond the model's. ResourceExhausted, with the numbers and
// the settings that help, if the machine has too little memory for these sizes. Those of `cost_of`.
absl::StatusOr<StartSizes> fit_start(const StartSizes& wishes, int32_t model_context,
                                     const MachineMemory& memory, const CostOf& cost_of);

// Returns: one line about the sizes for the log: the context beside the model's, the bytes of the
// KV cache, and the settings that change them.
std::string describe(const StartSizes& sizes, const StartSizes& wishes, int32_t model_context,
                     const MachineMemory& memory);

}  // namespace tessera
