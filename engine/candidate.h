#pragma once

#include <cstdint>
#include <limits>

#include "engine/kv/kv_budget.h"
#include "kernels/kv/kv_page.h"

namespace tessera {

// When a sequence has its turn: its place in scheduling order, and the state of its tenant. Set by
// TenantClock, before each step.
struct Turn {
  int32_t tenant = 0;
  int32_t share = 1;  // of the tenant
  int64_t clock = 0;  // of the tenant, in virtual time
  // Free slots that the sequence may not take while others run: they are held for tenants that are
  // behind its own, or would be after its prompt.
  int32_t slots_held = 0;
  int64_t start = 0;     // place of the sequence, in virtual time
  int64_t order = 0;     // order within the tenant, see order_of
  int32_t priority = 0;  // lower runs first
};

// Pages of the prefix cache that a sequence uses, or will.
struct CachedPrefix {
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
};

// The scheduler's view of one live sequence: plain data, made by candidate_of().
struct Candidate {
  Turn turn = {};
  CachedPrefix prefix = {};
  int32_t tokens = 0;  // prompt and generated; all are stored before the next one is sampled
  int32_t stored = 0;  // tokens already in pages and in the residual buffer, or in a match
  // Tokens that are drafted behind the known ones (SequenceTokens::draft), of a running sequence
  // that decodes. They end in the group of its last known token, so they take no page.
  int32_t drafted = 0;
  // Pages held. Those shared with other samples of the request are included, those of the prefix
  // cache are not.
  int64_t pages = 0;
  bool running = false;  // has a slot; a waiting sequence has none and holds no pages
  KvDemand kv = {};      // page demand of its further tokens

  // Samples of one request are separate candidates. `request` identifies the request; `shareable`
  // is the number of first tokens that its samples share (SequenceRequest::shareable).
  int64_t request = 0;
  int32_t shareable = 0;
  // Tokens from this position on are computed one per step (KvPolicy::one_by_one).
  int32_t one_by_one = std::numeric_limits<int32_t>::max();

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
// has the number of its first sample. Scheduling order is by Turn::start, and then by this.
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

}  // namespace tessera
