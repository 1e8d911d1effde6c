#pragma once

#include <cstdint>
#include <vector>

#include "engine/scheduler.h"

namespace tessera {

// Candidates for tests of the scheduler, in rows of kHeads pages.
inline constexpr int32_t kHeads = 4;
inline constexpr int32_t kPageTokens = kKvGroup;
inline constexpr KvDemand kDemand{.heads = kHeads, .page_tokens = kPageTokens};

inline KvBudget budget(int64_t rows_free) {
  return {rows_free * kHeads, kHeads, kPageTokens};
}

inline Candidate waiting(int64_t order, int32_t tokens, int32_t priority = 0) {
  return {.order = order,
          .priority = priority,
          .tokens = tokens,
          .stored = 0,
          .pages = 0,
          .running = false,
          .kv = kDemand};
}

inline Candidate running(int64_t order, int32_t tokens, int32_t stored, int32_t priority = 0) {
  return {.order = order,
          .priority = priority,
          .tokens = tokens,
          .stored = stored,
          .pages = budget(0).pages_for(stored),
          .running = true,
          .kv = kDemand};
}

inline Candidate decoding(int64_t order, int32_t tokens, int32_t priority = 0) {
  return running(order, tokens, tokens - 1, priority);
}

inline StepPlan plan(const SchedulerLimits& limits, const std::vector<Candidate>& candidates,
                     const KvBudget& free) {
  return Scheduler(limits).plan(candidates, free, {});
}

}  // namespace tessera
