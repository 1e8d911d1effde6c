#include "engine/scheduler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/admission_order.h"
#include "engine/draft.h"

namespace tessera {

struct Scheduler::Scratch {
  std::vector<int32_t> counts;        // [candidates], known tokens of each run; 0: no run
  std::vector<int32_t> drafted;       // [candidates], drafted tokens of each run
  std::vector<int32_t> steps;         // [candidates], of each tightening; 0: none
  std::vector<uint8_t> evicted;       // [candidates], 1: the candidate is in StepPlan::preempted
  std::vector<Turn> running_tenants;  // one of each tenant that runs
  AdmissionOrder admission_order;

  void reserve(size_t candidates, size_t sequences) {
    for (auto* numbers : {&counts, &drafted, &steps}) {
      numbers->reserve(candidates);
    }
    evicted.reserve(candidates);
    running_tenants.reserve(sequences);
    admission_order.reserve(candidates);
  }

  void begin(size_t candidates) {
    for (auto* numbers : {&counts, &drafted, &steps}) {
      numbers->assign(candidates, 0);
    }
    evicted.assign(candidates, 0);
  }
};

// Builds one plan. Tracks the free pages, tokens and slots while it decides one candidate at a
// time.
class Scheduler::Planner {
 public:
  // plan: empty.
  Planner(std::span<const Candidate> candidates, const KvBudget& budget,
          const SchedulerLimits& limits, Scratch& scratch, StepPlan& plan)
      : candidates_(candidates),
        scratch_(scratch),
        plan_(plan),
        free_(budget.pages_free),
        free_before_(budget.pages_free),
        max_step_tokens_(limits.max_step_tokens),
        tokens_left_(limits.max_step_tokens),
        slots_left_(limits.max_sequences),
        max_drafting_tokens_(limits.max_drafting_tokens),
        tenant_lead_(limits.tenant_lead),
        end_of_running_(candidates.size()) {
    scratch_.begin(candidates.size());
    for (size_t i = 0; i < candidates.size(); ++i) {
      slots_left_ -= candidates[i].running ? 1 : 0;
      check_order(i);
    }
    note_running_tenants();
    TESSERA_CHECK(slots_left_ >= 0, "more sequences run than there are slots");
  }

  void run_decodes() { run_running(true); }
  void run_prefills() { run_running(false); }

  void admit_waiting() {
    promised_ = 0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      promised_ += promise(i);
    }
    for (const int32_t waiting : scratch_.admission_order.of(candidates_)) {
      const auto i = static_cast<size_t>(waiting);
      // A step does not admit sequences behind one that it preempts, so none overtakes that one.
      if (i > best_preempted_ || waits_for_prefix(i) || leaves_slot(i) || tenant_room(i) == 0 ||
          candidates_[first_sample(i)].prefix.restoring) {
        continue;
      }
      if (waits_for_sibling(i) || !make_room_to_admit(i)) {
        break;
      }
      admitted_matches_ = admitted_matches_ || candidates_[i].prefix.matched > 0;
      --slots_left_;
      plan_.admitted.push_back(static_cast<int32_t>(i));
      if (forks(i)) {
        plan_.forks.push_back(
            {static_cast<int32_t>(i), static_cast<int32_t>(first_sample(i)), fork_tokens(i)});
      }
      grow(i);
      promised_ += promise(i);
    }
  }

  void run_drafts() {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      scratch_.drafted[i] = decodes(i) && scratch_.counts[i] > 0 ? candidates_[i].drafted : 0;
    }
    const int32_t used = max_step_tokens_ - tokens_left_;
    tokens_left_ -=
        share_rows(std::min(max_drafting_tokens_ - used, tokens_left_), scratch_.drafted);
  }

  void collect_tightened() {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (scratch_.steps[i] > 0) {
        plan_.tightened.push_back({static_cast<int32_t>(i), scratch_.steps[i]});
      }
    }
  }

  void collect_runs() {
    collect_runs_that([&](size_t i) { return decodes(i); });
    collect_runs_that([&](size_t i) { return !decodes(i); });
    plan_.spare = {tokens_left_, slots_left_, std::max<int64_t>(0, free_ - promised_)};
  }

 private:
  void run_running(bool decoding) {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (keeps_slot(i) && candidates_[i].decodes() == decoding) {
        run(i);
      }
    }
  }

  bool decodes(size_t i) const { return candidates_[i].running && candidates_[i].decodes(); }

  template <class Predicate>
  void collect_runs_that(Predicate&& wanted) {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const int32_t count = scratch_.counts[i];
      if (count > 0 && wanted(i)) {
        const bool samples = stored(i) + count == candidates_[i].tokens &&
                             !candidates_[i].kv.sections.replay_due(stored(i));
        const int32_t drafted = samples ? scratch_.drafted[i] : 0;
        plan_.runs.push_back({static_cast<int32_t>(i), count + drafted, samples, drafted});
      }
    }
  }

  void note_running_tenants() {
    std::vector<Turn>& running = scratch_.running_tenants;
    running.clear();
    for (const Candidate& candidate : candidates_) {
      if (candidate.running) {
        running.push_back(candidate.turn);
      }
    }
    std::sort(running.begin(), running.end(),
              [](const auto& a, const auto& b) { return a.tenant < b.tenant; });
    const auto same = [](const auto& a, const auto& b) { return a.tenant == b.tenant; };
    running.erase(std::unique(running.begin(), running.end(), same), running.end());
  }

  // Returns: true if the tenant of `turn` is ahead of that of `other`.
  bool is_ahead(const Turn& turn, const Turn& other) const {
    return turn.clock - other.clock >= tenant_lead_ / other.share;
  }

  // Returns: the tokens that prefills of the tenant of `i` may still take in this step. If it is
  // ahead of others that run, that is the rest of its share of the step. One token is always in
  // it, so a step without other runs is not empty.
  int32_t tenant_room(size_t i) const {
    const Turn& own = candidates_[i].turn;
    int64_t shares = own.share;
    for (const Turn& other : scratch_.running_tenants) {
      if (other.tenant != own.tenant && is_ahead(own, other)) {
        shares += other.share;
      }
    }
    if (shares == own.share || decodes(i)) {
      return max_step_tokens_;
    }
    int64_t left = std::max<int64_t>(1, int64_t{max_step_tokens_} * own.share / shares);
    for (size_t j = 0; j < candidates_.size(); ++j) {
      const bool takes = candidates_[j].turn.tenant == own.tenant && !decodes(j);
      left -= takes ? scratch_.counts[j] : 0;
    }
    return static_cast<int32_t>(std::max<int64_t>(0, left));
  }

  // Returns: true if another sequence is computing the next prefix block of `i`, i.e. it keeps its
  // slot or runs in this step.
  bool waits_for_prefix(size_t i) const {
    const int32_t other = candidates_[i].prefix.waits_for;
    return other >= 0 && (keeps_slot(static_cast<size_t>(other)) ||
                          scratch_.counts[static_cast<size_t>(other)] > 0);
  }

  // Returns: true if the free slots are held for tenants that are behind that of `i`. Nothing is
  // held while nothing runs, so a step is not empty.
  bool leaves_slot(size_t i) const {
    const int32_t held = candidates_[i].turn.slots_held;
    return slots_left_ <= held && held > 0 && !scratch_.running_tenants.empty();
  }

  bool keeps_slot(size_t i) const { return candidates_[i].running && scratch_.evicted[i] == 0; }

  // ---- samples of one request

  bool follows_sibling(size_t i) const {
    return i > 0 && candidates_[i].shareable > 0 &&
           candidates_[i - 1].request == candidates_[i].request;
  }

  size_t first_sample(size_t i) const {
    while (follows_sibling(i)) {
      --i;
    }
    return i;
  }

  void check_order(size_t i) const {
    TESSERA_CHECK(!follows_sibling(i) || !candidates_[i].running || candidates_[i - 1].running,
                  "a request's sample runs while one before it waits");
  }

  // Returns: true if `i` must wait until the request's first sample has stored the shared tokens.
  // If the first sample loses its slot in this step, admit_waiting() skips `i`, which is behind it.
  bool waits_for_sibling(size_t i) const {
    const Candidate& first = candidates_[first_sample(i)];
    return follows_sibling(i) && !(first.running && first.stored >= first.shareable) &&
           first.forkable();
  }

  // Returns: true if `i` is a waiting sample that follows another one, so it is admitted as a fork.
  bool forks(size_t i) const {
    return !candidates_[i].running && follows_sibling(i) && candidates_[first_sample(i)].forkable();
  }

  // ---- tokens and pages

  int32_t stored(size_t i) const { return forks(i) ? fork_tokens(i) : candidates_[i].stored; }

  int32_t fork_tokens(size_t i) const { return candidates_[first_sample(i)].fork_tokens(); }

  // Pending tokens of `i` up to the next limit: the end of the shared tokens, the end of the tokens
  // that are computed in chunks, the end of a section, or the last token. If a replay is due, its
  // tokens.
  int32_t next_chunk(size_t i) const {
    const Candidate& candidate = candidates_[i];
    const int32_t before = stored(i);
    const int32_t limit = candidate.kv.run_limit(before);
    if (candidate.kv.sections.replay_due(before)) {
      return limit;
    }
    const int32_t end = before < candidate.shareable ? candidate.shareable : candidate.tokens;
    return std::min(
        limit,
        std::min(end, before < candidate.one_by_one ? candidate.one_by_one : before + 1) - before);
  }

  // Pages that `i` takes with its slot: for a swap-in or a match, or for the copies of pages that a
  // fork cannot share.
  int64_t taken_at_admission(size_t i) const {
    const KvDemand& kv = candidates_[i].kv;
    if (forks(i)) {
      return kv.pages_for(stored(i)) - kv.full_pages(stored(i));
    }
    return candidates_[i].running ? 0 : kv.swap_in_pages + locked(i, !plan_.preempted.empty());
  }

  // Pages that become unavailable when `i` attaches its match. If the step preempts, these are all
  // matched pages, because preempted sequences may have locked any of them until now.
  int64_t locked(size_t i, bool preempts) const {
    return preempts ? candidates_[i].prefix.matched : candidates_[i].prefix.locked;
  }

  // Additional pages that `i` takes in this step.
  int64_t growth(size_t i) const { return growth(i, scratch_.counts[i]); }
  int64_t growth(size_t i, int32_t count) const {
    return count == 0 ? 0 : taken_at_admission(i) + candidates_[i].kv.growth(stored(i), count);
  }
  // Pages that all known tokens of `i` take, which waits.
  int64_t growth_of_all(size_t i) const {
    return taken_at_admission(i) + candidates_[i].kv.growth_to(stored(i), candidates_[i].tokens);
  }

  // Pages that become free when only `i` loses its slot. Victims are taken from the end, so earlier
  // samples that share pages with it still run.
  int64_t own_pages(size_t i) const {
    const Candidate& candidate = candidates_[i];
    const int64_t shared = follows_sibling(i) ? candidate.kv.full_pages(candidate.shareable) : 0;
    // A sequence admitted in this step may have locked the pages that `i` returns to the cache.
    const int64_t own = std::max<int64_t>(0, candidate.pages - shared);
    return own + (admitted_matches_ ? 0 : candidate.prefix.unlocked);
  }

  // Pages that must stay free for `i` after this step if it has a slot: for its known tokens and
  // one more group.
  int64_t promise(size_t i) const {
    const Candidate& candidate = candidates_[i];
    const bool has_slot = keeps_slot(i) || (!candidate.running && scratch_.counts[i] > 0);
    const int64_t left = candidate.kv.growth_to(stored(i), candidate.tokens + kKvGroup) -
                         candidate.kv.growth(stored(i), scratch_.counts[i]);
    return has_slot ? std::max<int64_t>(left, 0) : 0;
  }

  // Runs as many pending tokens of `i` as step tokens and pages allow. Preempts sequences behind it
  // only if the pages do not suffice for its first token.
  void run(size_t i) {
    if (tokens_left_ == 0 || tenant_room(i) == 0) {
      return;
    }
    const int64_t first = growth(i, 1);
    while (free_ < first) {
      plan_.lacks_pages = true;
      if (tighten_one_from(0)) {
        continue;
      }
      const size_t victim = worst_running_from(i);
      if (victim == i) {
        return;
      }
      preempt(victim);
    }
    grow(i);
  }

  // ---- tightening

  int64_t freed(size_t i, int32_t steps) const {
    return steps == 0 ? 0 : candidates_[i].tightening.freed[static_cast<size_t>(steps - 1)];
  }

  // Pages that further steps of `i` free, down to its floor.
  int64_t still_freed(size_t i) const {
    const bool may = keeps_slot(i) && candidates_[i].tightening.pages_needed <= free_before_;
    return may ? freed(i, kMaxTightenings) - freed(i, scratch_.steps[i]) : 0;
  }

  // Tightens the sequence with the fewest steps among those from `first` on. Of several it is the
  // last one. Returns: false if none of them would free a page.
  bool tighten_one_from(size_t first) {
    const auto steps_of = [&](size_t i) {
      return candidates_[i].tightening.steps + scratch_.steps[i];
    };
    size_t least = candidates_.size();
    for (size_t i = candidates_.size(); i > first; --i) {
      if (still_freed(i - 1) > 0 &&
          (least == candidates_.size() || steps_of(i - 1) < steps_of(least))) {
        least = i - 1;
      }
    }
    if (least == candidates_.size()) {
      return false;
    }
    int32_t& steps = scratch_.steps[least];
    const int64_t before = freed(least, steps);
    while (freed(least, steps) == before) {
      ++steps;
    }
    free_ += freed(least, steps) - before;
    return true;
  }

  // Tightens the sequences from `first` on until `i`, which waits, can be admitted. Returns: false,
  // and tightens none, if that does not suffice.
  bool tighten_to_admit(size_t i, size_t first) {
    const int64_t needed = promised_ + growth_of_all(i);
    int64_t all = free_;
    for (size_t j = first; j < candidates_.size(); ++j) {
      all += still_freed(j);
    }
    if (slots_left_ < 1 || tokens_left_ < 1 || all < needed) {
      return false;
    }
    while (free_ < needed && tighten_one_from(first)) {
    }
    return true;
  }

  // Gives `i` as many tokens as the step and the free pages have room for.
  void grow(size_t i) {
    const int32_t tokens = std::min({next_chunk(i), tokens_left_, tenant_room(i)});
    scratch_.counts[i] =
        candidates_[i].kv.tokens_within(free_ - taken_at_admission(i), stored(i), tokens);
    plan_.lacks_pages = plan_.lacks_pages || scratch_.counts[i] < tokens;
    free_ -= growth(i);
    tokens_left_ -= scratch_.counts[i];
  }

  // Returns: the last sequence in scheduling order that keeps a slot. Requires: `i` keeps one; the
  // result is not before `i`.
  size_t worst_running_from(size_t i) {
    while (end_of_running_ > i + 1 && !keeps_slot(end_of_running_ - 1)) {
      --end_of_running_;
    }
    return std::max(end_of_running_, i + 1) - 1;
  }

  void preempt(size_t victim) {
    free_ += own_pages(victim) + growth(victim) - freed(victim, scratch_.steps[victim]);
    scratch_.steps[victim] = 0;
    tokens_left_ += scratch_.counts[victim];
    ++slots_left_;
    scratch_.counts[victim] = 0;
    scratch_.evicted[victim] = 1;
    best_preempted_ = std::min(best_preempted_, victim);
    plan_.preempted.push_back(static_cast<int32_t>(victim));
  }

  // Returns: true if a waiting sequence may take the slot of a running one behind it.
  bool may_displace(const Turn& waiting, const Turn& victim) const {
    return waiting.tenant == victim.tenant ? victim.priority > waiting.priority
                                           : is_ahead(victim, waiting);
  }

  // Preempts running sequences behind `i` that it may displace, if that is necessary to admit `i`
  // and suffices for it; otherwise preempts none. Returns: true if `i` can be admitted.
  bool make_room_to_admit(size_t i) {
    int64_t slots = slots_left_;
    int64_t tokens = tokens_left_;
    int64_t spare = free_ - promised_ - growth_of_all(i);
    size_t first_victim = candidates_.size();
    plan_.lacks_pages = plan_.lacks_pages || spare < 0;
    if ((slots < 1 || tokens < 1 || spare < 0) && !forks(i) && plan_.preempted.empty()) {
      spare -= locked(i, true) - locked(i, false);
    }
    while (slots < 1 || tokens < 1 || spare < 0) {
      --first_victim;
      if (first_victim == i) {
        return false;
      }
      if (!keeps_slot(first_victim)) {
        continue;
      }
      if (!may_displace(candidates_[i].turn, candidates_[first_victim].turn)) {
        return false;
      }
      ++slots;
      tokens += scratch_.counts[first_victim];
      spare += own_pages(first_victim) + growth(first_victim) + promise(first_victim) -
               freed(first_victim, scratch_.steps[first_victim]);
    }
    if (tighten_to_admit(i, first_victim)) {
      return true;
    }
    for (size_t victim = candidates_.size(); victim > first_victim; --victim) {
      if (keeps_slot(victim - 1)) {
        promised_ -= promise(victim - 1);
        preempt(victim - 1);
      }
    }
    return true;
  }

  std::span<const Candidate> candidates_;
  Scratch& scratch_;
  StepPlan& plan_;
  int64_t free_;               // in pages
  const int64_t free_before_;  // at the start of the step
  const int32_t max_step_tokens_;
  int32_t tokens_left_;  // in this step
  int32_t slots_left_;
  const int32_t max_drafting_tokens_;
  const int64_t tenant_lead_;  // see SchedulerLimits
  int64_t promised_ = 0;       // sum of promise() over sequences with a slot, in pages
  size_t best_preempted_ = SIZE_MAX;
  bool admitted_matches_ = false;  // an admitted sequence begins with a cached prefix
  size_t end_of_running_;          // no sequence from this index on keeps a slot
};

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits), scratch_(std::make_unique<Scratch>()) {
  TESSERA_CHECK(limits.max_sequences > 0 && limits.max_sequences <= limits.max_step_tokens,
                "a step has room for a token of every sequence");
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  scratch_->reserve(static_cast<size_t>(limits.max_candidates), sequences);
  plan_.preempted.reserve(sequences);
  plan_.tightened.reserve(sequences);
  plan_.admitted.reserve(sequences);
  plan_.forks.reserve(sequences);
  plan_.runs.reserve(sequences);
}

Scheduler::~Scheduler() = default;

const StepPlan& Scheduler::plan(std::span<const Candidate> candidates, const KvBudget& budget) {
  plan_.clear();
  Planner planner(candidates, budget, limits_, *scratch_, plan_);
  planner.run_decodes();
  planner.run_prefills();
  planner.admit_waiting();
  planner.run_drafts();
  planner.collect_tightened();
  planner.collect_runs();
  const bool replans = budget.replay_holds && plan_.lacks_pages;
  const bool waits = std::any_of(candidates.begin(), candidates.end(),
                                 [](const Candidate& waiting) { return waiting.prefix.restoring; });
  TESSERA_CHECK(candidates.empty() || !plan_.empty() || replans || waits,
                "a step with candidates changes something");
  return plan_;
}

}  // namespace tessera
