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
  return {.turn = {.order = order, .priority = priority},
          .tokens = tokens,
          .stored = 0,
          .pages = 0,
          .running = false,
          .kv = kDemand};
}

inline Candidate running(int64_t order, int32_t tokens, int32_t stored, int32_t priority = 0) {
  return {.turn = {.order = order, .priority = priority},
          .tokens = tokens,
          .stored = stored,
          .pages = budget(0).pages_for(stored),
          .running = true,
          .kv = kDemand};
}

inline Candidate decoding(int64_t order, int32_t tokens, int32_t priority = 0) {
  return running(order, tokens, tokens - 1, priority);
}

// A plan, and the same by candidate.
struct Planned : StepPlan {
  std::vector<int32_t> counts;  // known tokens of each run; 0: no run
  std::vector<int32_t> steps;   // of each tightening; 0: none
  std::vector<bool> evicted;
};

inline Planned plan(const SchedulerLimits& limits, const std::vector<Candidate>& candidates,
                    const KvBudget& free) {
  Planned planned{Scheduler(limits).plan(candidates, free), std::vector<int32_t>(candidates.size()),
                  std::vector<int32_t>(candidates.size()), std::vector<bool>(candidates.size())};
  for (const StepPlan::Run& run : planned.runs) {
    planned.counts[static_cast<size_t>(run.candidate)] = run.count - run.drafted;
  }
  for (const StepPlan::Tightening& tightening : planned.tightened) {
    planned.steps[static_cast<size_t>(tightening.candidate)] = tightening.steps;
  }
  for (const int32_t candidate : planned.preempted) {
    planned.evicted[static_cast<size_t>(candidate)] = true;
  }
  return planned;
}

}  // namespace tessera
