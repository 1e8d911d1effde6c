#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/request_options.h"

namespace tessera {

// DRY, "don't repeat yourself": a penalty for tokens that would continue a repetition. It is the
// sampler of llama-server's options dry_*, which text-generation-webui introduced in its pull
// request 5677. If the last `length` tokens stood in the text before, the token that followed them
// there gets a penalty: dry_multiplier * dry_base^(length - dry_allowed_length). Shorter matches
// than dry_allowed_length have none. A repetition ends at a token of dry_sequence_breakers. Only
// the last dry_penalty_last_n tokens count, of prompt and completion together.
class DryPenalty {
 public:
  DryPenalty() : lengths_(kMaxDryTokens) {}

  using Penalize = std::function<void(int32_t token, float penalty)>;

  // Calls `penalize` once for each token with a penalty, in linear time, without an allocation.
  // counts: [vocab], all zero before and after.
  void each(const SamplingParams& params, std::span<const int32_t> prompt,
            std::span<const int32_t> generated, std::span<int32_t> counts,
            const Penalize& penalize);

 private:
  std::vector<int32_t> lengths_;  // [kMaxDryTokens] of matches, by distance from the end
};

}  // namespace tessera
