#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/kv/kv_cache.h"
#include "engine/step_plan.h"

namespace tessera {

// Tokens of a replay that a step computes, and the slot that stores them.
struct ReplayRun {
  const KvSlot& slot;
  std::span<const int32_t> tokens;

  ReplayRun(const KvSlot& of, std::span<const int32_t> next) : slot(of), tokens(next) {}
};

// The section step of the ladder: replays whole blocks of the prefix cache that no sequence uses,
// one block at a time, and compresses them to sections. Used by the engine thread.
//
// A replay takes only spare resources of a step: a slot, step tokens, available pages. It is given
// up, and its block stays whole, as soon as a request uses the block or needs the slot or the
// pages. So no request waits for more than the replayed tokens of one step.
class BackgroundReplay {
 public:
  // Most tokens of a replay in one step. A step without other runs takes no more, because a request
  // that arrives waits for its end.
  static constexpr int32_t kStepTokens = kKvGroup;

  explicit BackgroundReplay(KvCache& kv) : kv_(kv) {}

  bool holds_pages() const { return slot_.has_value(); }
  // Gives up the replay, if there is one. Its slot and pages are free.
  void give_up();

  // Decides about the step, from its plan's spare resources. Changes nothing in the cache.
  // Requires: the plan was made with the pages that the replay leaves.
  void plan(const StepPlan& plan);
  // Returns: true if the step changes something for the replay.
  bool acts() const { return count_ > 0 || gives_up_; }

  // ---- in a step that acts, in this order
  // Gives up or begins as planned.
  // Requires: preempted sequences are released, admitted ones have no slots yet.
  void reserve();
  const std::optional<ReplayRun>& run() const { return run_; }  // none: nothing is computed
  // Compresses the block if its replay is complete. The slot is free then.
  // Requires: the run is stored and scored.
  void finish();

 private:
  int32_t block_end() const;  // position behind the block, where its replay begins
  int32_t replayed() const { return kv_.position(*slot_) - block_end(); }
  void plan_next(const StepPlan& plan);
  void plan_first(const StepPlan& plan);

  KvCache& kv_;
  std::optional<KvSlot> slot_;
  // The planned step:
  int32_t count_ = 0;
  bool gives_up_ = false;
  KvMatch due_;  // the path with which the slot will begin; no blocks: it has begun
  std::optional<ReplayRun> run_;
};

}  // namespace tessera
