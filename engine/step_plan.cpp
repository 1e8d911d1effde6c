#include "engine/step_plan.h"

namespace tessera {

void StepPlan::begin(size_t candidates) {
  preempted.clear();
  tightened.clear();
  admitted.clear();
  forks.clear();
  runs.clear();
  lacks_pages = false;
  counts.assign(candidates, 0);
  drafted.assign(candidates, 0);
  steps.assign(candidates, 0);
  evicted.assign(candidates, 0);
  waiting.clear();
}

}  // namespace tessera
