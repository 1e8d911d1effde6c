#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/candidate.h"
#include "engine/step_plan.h"

namespace tessera {

struct SchedulerLimits {
  int32_t max_step_tokens = 0;
  int32_t max_sequences = 0;        // <= max_step_tokens, so every decode fits into every step
  int32_t max_drafting_tokens = 0;  // of a step with drafted tokens
  // A tenant is *ahead* of another if its clock is ahead by this virtual time, divided by the
  // other's share.
  int64_t tenant_lead = 0;
  int32_t max_candidates = 0;  // up to so many, planning allocates nothing
};

// Decides which sequences run in a step and how many tokens each computes: continuous batching with
// chunked prefill. A plan is a pure function of the arguments: no clock, no device. Between calls
// the scheduler keeps memory to work in, and its last plan, on which no later plan depends.
//
// A step is filled in this order:
//   1. Decodes: every running sequence with one pending token. So prefills never delay decodes.
//   2. Chunks of running prefills, in scheduling order, up to max_step_tokens. A replay is a
//      prefill (KvSections). Runs end where a section or a replay ends.
//   3. Waiting sequences, in scheduling order, while a slot, step tokens and free pages are left.
//      The places of a tenant are filled by order_of minus head start. The pages must suffice for
//      all known tokens of the sequence, uncompressed, besides the pages promised to running
//      sequences: their known tokens and one more group each. The first sequence that does not fit
//      ends admission, so no sequence overtakes it. A sequence whose next prefix block another one
//      is computing waits for that one and delays no other. A sequence also waits, and delays no
//      other, if all free slots are held for other tenants (Turn::slots_held).
//   4. Drafted tokens of decodes, while the step has at most `max_drafting_tokens`: there, further
//      rows cost little, because a step reads all weights anyway. A full batch drafts nothing.
//
// While a tenant has running sequences, the prefills of a tenant that is ahead of it take at most
// their share of `max_step_tokens`. The step is shorter then. So the prompts of one tenant, however
// many and long, delay the tokens of another by its share of a step.
//
// Samples of one request compute their shared tokens once. The first sample stores them, in chunks
// that end at the last shared token. The other samples wait for it, and no sequence overtakes them.
// Then they are admitted as forks of the first sample: its full pages get more owners. If its open
// group has closed since, the fork cannot take the tokens of that group and computes them itself.
// If its queries have passed pages of layers with windows that a fork reads, the others store all
// shared tokens again.
// Consequences: the running samples of a request stand before its waiting ones. The first sample
// counts for the shared pages, and each other sample for its own pages alone. If the first sample
// ends before the others are admitted, the next sample stores the shared tokens again.
//
// When pages run out, the budgets of running sequences are tightened first (Candidate::tightening),
// down to the floor of each. The sequence with the fewest steps takes the next one, of these the
// last in scheduling order. Planning counts a lower bound of the pages that this frees.
//
// If that does not suffice, a running sequence that needs pages preempts the last running sequence
// after it in scheduling order. The preempted sequence keeps its tokens, waits at its place in this
// order and is recomputed. If a policy has compressed it, recompute would change its text, so it is
// swapped out and swapped in again. A sequence without such a victim keeps its pages and skips the
// step. A waiting sequence preempts only sequences of a worse *priority* of its own tenant, or
// those of tenants that are ahead by `tenant_lead`. It does so only if that suffices to admit it.
// If pages alone are short, those that it would preempt are tightened instead, where that suffices.
// It cannot be preempted by these in turn, because scheduling order is the same for both.
//
// Unlocked pages of the prefix cache count as free (KvBudget::pages_free). If a step both preempts
// and admits sequences that may share cached pages, totals do not tell which pages become free.
// Planning then counts fewer pages. Such a step may preempt and run nothing; the next step plans
// with exact totals.
//
// A background replay (engine/background_replay.h) holds pages that a plan does not count. If a
// plan lacks pages, the replay is given up and the step is planned again.
//
// Progress: no running sequence preempts the first one in scheduling order. That one skips a step
// only if the step preempted for it, because the arena holds at least one whole context. If nothing
// runs, the first waiting sequence is admitted. So every step with a candidate runs or preempts
// something, and every sequence ends after finitely many steps: no deadlock, no starvation.
//
// Priority inversion: a request of better priority waits at most for running sequences of its own
// or better priority, and for sequences aged past it by kPriorityHeadStart.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);
  ~Scheduler();

  // Plans one step.
  // Requires: candidates in scheduling order; samples of one request are adjacent, have one
  // priority, and the running ones come first; each candidate has pending tokens and fits into the
  // arena alone.
  // Returns: a plan that runs or preempts something, unless there are no candidates, it lacks
  // pages that a background replay holds, or a candidate is CachedPrefix::restoring. Valid until
  // the next call.
  const StepPlan& plan(std::span<const Candidate> candidates, const KvBudget& budget);
  const StepPlan& last_plan() const { return plan_; }

 private:
  class Planner;
  struct Scratch;

  const SchedulerLimits limits_;
  const std::unique_ptr<Scratch> scratch_;  // memory that plan() reuses, without meaning between
  StepPlan plan_;
};

}  // namespace tessera
