#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "engine/kv/kv_budget.h"
#include "engine/step_plan.h"
#include "kernels/kv/kv_page.h"

namespace tessera {

// The scheduler's view of one live sequence: plain data.
struct Candidate {
  int32_t tenant = 0;
  int32_t share = 1;
  int64_t clock = 0;  // of the tenant, in virtual time, see TenantClock
  // Free slots that it may not take while others run: they are held for tenants that are behind its
  // own, or would be after its prompt.
  int32_t slots_held = 0;
  int64_t start = 0;     // place of the sequence, in virtual time
  int64_t order = 0;     // order within the tenant, see order_of
  int32_t priority = 0;  // lower runs first
  int32_t tokens = 0;    // prompt and generated; all are stored before the next one is sampled
  int32_t stored = 0;    // tokens already in pages and in the residual buffer, or in a match
  // Tokens that are drafted behind the known ones (Sequence::draft), of a running sequence that
  // decodes. They end in the group of its last known token, so they take no page.
  int32_t drafted = 0;
  // Pages held. Those shared with other samples of the request are included, those of the prefix
  // cache are not.
  int64_t pages = 0;
  bool running = false;  // has a slot; a waiting sequence has none and holds no pages
  KvDemand kv = {};      // page demand of its further tokens

  // Samples of one request are separate candidates. `request` identifies the request; `shareable`
  // is the number of first tokens that its samples share (Sequence::shareable).
  int64_t request = 0;
  int32_t shareable = 0;
  // Tokens from this position on are computed one per step (KvPolicy::one_by_one).
  int32_t one_by_one = std::numeric_limits<int32_t>::max();

  // ---- prefix cache
  // Running sequences: pages of the prefix cache that become available once this sequence and all
  // running ones after it have lost their slots. Until then one of them locks these pages.
  int64_t unlocked = 0;
  // Waiting sequences, which will begin with their `stored` tokens: pages of the matched blocks,
  // and those among them that are unlocked now. Admission makes the latter unavailable.
  int64_t matched = 0;
  int64_t locked = 0;
  int32_t head_start = 0;  // see kMatchHeadStart
  // Index of an earlier candidate that has the same next prefix block and has not stored it yet.
  // This one waits while that one runs. -1: none.
  int32_t waits_for = -1;
  // True: the cached beginning of its prompt is being read (engine/prefix_restore.h). Until then it
  // is not admitted, and delays no other.
  bool restoring = false;

  KvTightening tightening = {};  // of a running sequence

  int32_t pending() const { return tokens - stored; }  // known tokens that are not stored
  // Shared tokens that a fork of this sample gets, the first one of its request. Tokens of its open
  // group are available only until the group closes, because then the residual buffer no longer has
  // them.
  int32_t fork_tokens() const {
    return stored / kKvGroup == shareable / kKvGroup ? shareable : shareable / kKvGroup * kKvGroup;
  }
  // Returns: false if queries of this running sample, the first one of its request, have passed
  // pages that a fork reads. Another sample then computes its prompt, or finds it in the prefix
  // cache.
  bool forkable() const {
    return kv.windows.rows == 0 || kv.windows.passed(stored, kv.page_tokens) <=
                                       kv.windows.passed(fork_tokens(), kv.page_tokens);
  }
  // True if its next run is the last pending token, from which the next one is chosen.
  bool decodes() const { return pending() == 1 && !kv.sections.replay_due(stored); }
};

// A priority level is a head start of this many arrivals. The engine's queue is far shorter, so the
// better priority goes first. Later requests that overtake a request are limited to this number for
// each level between them, so urgent requests cannot starve the others.
inline constexpr int64_t kPriorityHeadStart = 4096;

// Order within a tenant: the lower value runs first and is preempted last. Within a priority this
// is first come, first served, also for a preempted sequence. `arrival` counts samples; a request
// has the number of its first sample. Scheduling order is by Candidate::start, and then by this.
constexpr int64_t order_of(int32_t priority, int64_t arrival) {
  return arrival + int64_t{priority} * kPriorityHeadStart;
}

// Admission prefers sequences whose prompt is cached. Each cached group of 64 tokens is a head
// start of kMatchHeadStart arrivals, at most kMaxHeadStart in all. So at most that many later
// requests overtake a waiting one, however long the queue is, and no request starves.
inline constexpr int32_t kMatchHeadStart = 4;
inline constexpr int32_t kMaxHeadStart = 1024;

constexpr int32_t head_start_of(int32_t matched_tokens) {
  const int32_t groups = matched_tokens / kKvGroup;
  return groups < kMaxHeadStart / kMatchHeadStart ? groups * kMatchHeadStart : kMaxHeadStart;
}

struct SchedulerLimits {
  int32_t max_step_tokens = 0;
  int32_t max_sequences = 0;        // <= max_step_tokens, so every decode fits into every step
  int32_t max_drafting_tokens = 0;  // of a step with drafted tokens
  // A tenant is *ahead* of another if its clock is ahead by this virtual time, divided by the
  // other's share.
  int64_t tenant_lead = 0;
};

// Decides which sequences run in a step and how many tokens each computes: continuous batching with
// chunked prefill. A pure function of its arguments: no clock, no device, no state between calls.
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
//      other, if all free slots are held for other tenants (Candidate::slots_held).
//
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

  // Plans one step.
  // Requires: candidates in scheduling order; samples of one request are adjacent, have one
  // priority, and the running ones come first; each candidate has pending tokens and fits into the
  // arena alone. `reuse` is an earlier plan (or an empty one) whose memory is reused.
  // Returns: a plan that runs or preempts something, unless there are no candidates, it lacks
  // pages that a background replay holds, or a candidate is Candidate::restoring.
  StepPlan plan(std::span<const Candidate> candidates, const KvBudget& budget,
                StepPlan reuse) const;

 private:
  SchedulerLimits limits_;
};

}  // namespace tessera
