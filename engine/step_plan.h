#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tessera {

// Decision for one step. All indices refer to the candidates that the plan was made from.
struct StepPlan {
  struct Run {
    int32_t candidate = 0;
    int32_t count = 0;     // computes the next `count` pending tokens, or tokens of a replay
    bool samples = false;  // these are the last pending tokens, so the next token is sampled
    int32_t drafted = 0;   // drafted tokens among `count`
  };
  std::vector<int32_t> preempted;  // lose slot and pages before all else
  struct Tightening {
    int32_t candidate = 0;
    int32_t steps = 0;  // at least 1, at most kMaxTightenings
  };
  std::vector<Tightening> tightened;  // next, before any pages are taken
  std::vector<int32_t> admitted;      // get a slot; each has a run
  struct Fork {
    int32_t candidate = 0;  // an admitted candidate, the target
    int32_t source = 0;     // a running candidate
    int32_t tokens = 0;     // first tokens that the target takes from the source as stored
  };
  std::vector<Fork> forks;
  std::vector<Run> runs;     // decodes, then prefills, each in scheduling order
  bool lacks_pages = false;  // with more pages, more tokens or sequences would run
  struct Spare {
    int32_t tokens = 0;
    int32_t slots = 0;
    int64_t pages = 0;  // neither taken by the step nor promised
  };
  Spare spare;  // resources left for a background replay

  // Empties the plan, for that many candidates.
  void begin(size_t candidates);
  bool empty() const { return runs.empty() && preempted.empty() && tightened.empty(); }

  std::vector<int32_t> counts;   // [candidates], known tokens of each run; 0: no run
  std::vector<int32_t> drafted;  // [candidates], drafted tokens of each run
  std::vector<int32_t> steps;    // [candidates], of each tightening; 0: none
  std::vector<uint8_t> evicted;  // [candidates], 1: the candidate is in `preempted`
  std::vector<int32_t> waiting;  // waiting candidates, in order of admission
  // Used while planning: waiting candidates by tenant, and the place of each; tenants that run.
  std::vector<int32_t> by_tenant;
  std::vector<std::pair<int32_t, int32_t>> places;
  struct RunningTenant {
    int32_t tenant = 0;
    int32_t share = 1;
    int64_t clock = 0;
  };
  std::vector<RunningTenant> running_tenants;
};

}  // namespace tessera
