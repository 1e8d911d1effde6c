#include "engine/background_replay.h"

#include <algorithm>
#include <utility>

namespace tessera {

void BackgroundReplay::give_up() {
  run_.reset();
  if (slot_.has_value()) {
    KvSlot slot = std::move(*slot_);
    slot_.reset();
    kv_.release(std::move(slot));
  }
}

int32_t BackgroundReplay::block_end() const {
  const KvSections sections = kv_.planning().demand(*slot_).sections;
  return sections.next_end();
}

void BackgroundReplay::plan(const StepPlan& plan) {
  count_ = 0;
  gives_up_ = false;
  due_ = {};
  run_.reset();
  if (slot_.has_value()) {
    plan_next(plan);
  } else {
    plan_first(plan);
  }
}

void BackgroundReplay::plan_next(const StepPlan& plan) {
  const int32_t count =
      std::min({kStepTokens, plan.spare.tokens, kv_.prefixes().block_tokens() - replayed()});
  const int64_t growth = kv_.planning().demand(*slot_).growth(block_end(), count);
  gives_up_ =
      plan.spare.slots < 1 || growth > plan.spare.pages || kv_.prefixes().last_is_used(*slot_);
  count_ = gives_up_ ? 0 : count;
}

// The pages must suffice for the whole replay, so that it is not begun in vain.
void BackgroundReplay::plan_first(const StepPlan& plan) {
  const int32_t count = std::min(kStepTokens, plan.spare.tokens);
  if (count == 0 || plan.spare.slots < 1 || plan.lacks_pages) {
    return;
  }
  const KvMatch due = kv_.prefixes().due_block();
  const KvBudget budget = kv_.planning().budget();
  if (due.blocks() == 0 || plan.spare.pages < kv_.prefixes().unlocked_pages(due) +
                                                  budget.pages_for(kv_.prefixes().block_tokens())) {
    return;
  }
  due_ = due;
  count_ = count;
}

void BackgroundReplay::reserve() {
  if (gives_up_) {
    give_up();
  }
  if (due_.blocks() > 0) {
    slot_.emplace(kv_.open_replay(due_));
  }
  run_.reset();
  if (count_ > 0) {
    run_.emplace(*slot_, kv_.prefixes().last_tokens(*slot_).subspan(static_cast<size_t>(replayed()),
                                                                    static_cast<size_t>(count_)));
  }
}

void BackgroundReplay::finish() {
  if (count_ == 0 || replayed() < kv_.prefixes().block_tokens()) {
    return;
  }
  if (!kv_.prefixes().last_is_used(*slot_)) {
    kv_.compress_block(*slot_);
  }
  give_up();
}

}  // namespace tessera
