#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// The scheduler's decision for one step: plain data. All indices refer to the candidates that it
// was made from, which stand in the order of their sequences.
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

  void clear();  // keeps the memory
  bool empty() const { return runs.empty() && preempted.empty() && tightened.empty(); }
};

inline void StepPlan::clear() {
  preempted.clear();
  tightened.clear();
  admitted.clear();
  forks.clear();
  runs.clear();
  lacks_pages = false;
  spare = {};
}

}  // namespace tessera
