#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/kv/kv_budget.h"

namespace tessera {

// What the scheduler knows of a live sequence: plain data.
struct Candidate {
  int64_t rank = 0;      // see rank_of
  int32_t priority = 0;  // lower runs first
  int32_t tokens = 0;    // known: prompt and generated; all are stored before the next is sampled
  int32_t stored = 0;    // of them, in pages and the window
  int64_t pages = 0;     // it holds now, its siblings' included, without those of the prefix cache
  bool running = false;  // has a slot; otherwise it waits, and holds no pages
  KvDemand kv = {};      // what its further tokens take

  // Of a request with several samples, each a candidate: which one, and how many of its first
  // tokens they have in common. 0: nothing is to be shared.
  int64_t request = 0;
  int32_t shareable = 0;
  // Tokens from here on are computed one in a step, because each reads what is newest to it dense.
  int32_t one_by_one = std::numeric_limits<int32_t>::max();

  // The prefix cache. Of a running sequence: pages that others may take once it and all that run
  // behind it have lost their slots, and not before, because nobody uses what they hold then.
  int64_t returned = 0;
  // Of a waiting one, which will begin with its `stored` tokens: pages of these in all, and those
  // of them that nobody uses yet, so that others can take them no more once it is admitted.
  int64_t matched = 0;
  int64_t locked = 0;
  int32_t head_start = 0;  // see kMatchHeadStart
  // Another candidate, which is computing what this one begins with, if that runs; -1: none.
  int32_t waits_for = -1;

  int32_t pending() const { return tokens - stored; }
};

// A priority level is worth a head start of this many arrivals. Any queue the engine accepts is far
// shorter, so a better priority goes first; but a request can be overtaken by no more than this
// many later ones for each level between them, so that no stream of urgent work starves the rest.
inline constexpr int64_t kPriorityHeadStart = 4096;

// The order of everything: the lower rank runs first and is preempted last. Within a priority this
// is first come, first served, also for a sequence that was preempted. `arrival` counts samples,
// and a request has that of its first.
constexpr int64_t rank_of(int32_t priority, int64_t arrival) {
  return arrival + int64_t{priority} * kPriorityHeadStart;
}

// Admission prefers who finds much of its prompt in the prefix cache: each group of 64 tokens that
// is there is worth a head start of kMatchHeadStart arrivals, at most kMaxHeadStart in all. So a
// waiting request is overtaken by no more than that many later ones, however long the queue: nobody
// starves.
inline constexpr int32_t kMatchHeadStart = 4;
inline constexpr int32_t kMaxHeadStart = 1024;

constexpr int32_t head_start_of(int32_t matched_tokens) {
  const int32_t groups = matched_tokens / kKvGroup;
  return groups < kMaxHeadStart / kMatchHeadStart ? groups * kMatchHeadStart : kMaxHeadStart;
}

// What one step will do. Indices are those of the candidates the plan was made from.
struct StepPlan {
  struct Run {
    int32_t candidate = 0;
    int32_t count = 0;     // the next `count` pending tokens
    bool samples = false;  // they are the last ones pending, so the next token can be chosen
  };
  std::vector<int32_t> preempted;  // lose slot and pages before anything else happens
  std::vector<int32_t> admitted;   // get a slot; each has a run
  struct Fork {
    int32_t candidate = 0;  // admitted; its first
    int32_t source = 0;     // and this running candidate's
    int32_t tokens = 0;     // count as stored
  };
  std::vector<Fork> forks;
  std::vector<Run> runs;  // decodes, then prefills, each in order of rank

  bool empty() const { return runs.empty() && preempted.empty(); }

  std::vector<int32_t> counts;   // tokens of every candidate's run; 0: none
  std::vector<uint8_t> evicted;  // whether a candidate is in `preempted`
  std::vector<int32_t> waiting;  // candidates that wait, in the order of admission
};

struct SchedulerLimits {
  int32_t max_step_tokens = 0;
  int32_t max_sequences = 0;  // <= max_step_tokens: every decode fits into every step
};

// Decides who runs and how many tokens: continuous batching with chunked prefill. A pure function
// of its arguments: no clock, no device, nothing kept between calls.
//
// A step is filled in this order:
//   1. decodes: every running sequence with one pending token, so no prefill ever delays them;
//   2. chunks of running prefills, by rank, as far as max_step_tokens goes;
//   3. waiting sequences, by rank less head start, while there is a slot, some budget, and free
//   pages for all their
//      known tokens, uncompressed, besides what running sequences are promised: their own known
//      tokens and one more group. The first that does not fit ends admission: nothing overtakes it.
//      One whose beginning another is computing at this time waits for that one and holds nobody
//      up.
//
// Samples of one request compute what they have in common once. The first of them stores it, in
// chunks that end there; the others wait for it, and nobody overtakes them. Then they are admitted
// as forks of it: its full pages get more owners. Where its open group has closed since, that
// group's tokens are not to be had from it any more, and the fork computes them itself. So of a
// request's samples those that run stand
// before those that wait, the first one counts for the pages they share, and each other for its
// own alone. Where the first ended before others had room, the next one stores it anew.
//
// When pages run out, a running sequence that needs some takes them from the worst-ranked running
// sequence behind it, which is preempted: it keeps its tokens, waits at its rank and is computed
// anew, or, where a policy has compressed it and computing it anew would change its text, restored
// from host memory. Where nobody stands behind it, it keeps its pages and sits the step out. A
// waiting sequence preempts only sequences of a worse *priority*, and only if that suffices to
// admit it.
//
// Pages of the prefix cache that nobody uses count as free. What sequences that share pages with
// those admitted in the same step leave behind is not known from totals; planning then counts less,
// so a step may preempt and run nothing, and the next one knows what is free.
//
// Progress: the best-ranked running sequence is never preempted by a running one, and never sits
// out but behind a step that preempted for it, because the arena holds at least one whole context;
// with nothing running, the first waiting one is admitted. So every step runs or preempts
// something while there is a candidate, and every sequence ends after finitely many steps: no
// deadlock, no starvation.
//
// Inversion: a better-priority request waits at most for running sequences of its own priority or
// better, or for ones aged past it by kPriorityHeadStart.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  // Requires: candidates in order of rank, a request's samples next to each other and of one
  // priority, those that run first; each with pending tokens, and each alone fitting into the
  // arena. `reuse` is a former plan (or a new one) whose memory serves again.
  StepPlan plan(std::span<const Candidate> candidates, const KvBudget& budget,
                StepPlan reuse) const;

 private:
  SchedulerLimits limits_;
};

}  // namespace tessera
