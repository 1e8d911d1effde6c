#include "engine/batching_engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/step_digest.h"
#include "engine/tier/block_tiers.h"
#include "models/config/shard.h"

namespace tessera {

namespace {

// Blocks that a step hands to the writer: a step of the largest size stores more, and the rest
// follows in later ones.
constexpr int32_t kSavedInStep = 4;

// Blocks that a step demotes because clients ask for it: about a millisecond's work.
constexpr int32_t kDemotedInStep = 8;

// For blocks that the stores lack at the end, however long the requests took.
constexpr std::chrono::seconds kLeastSaveTime{1};

// A tenant that returns may compute its longest request, four times, before the requests of others.
// It preempts them until it has computed half of that.
TenantClock::Limits tenant_limits(const EngineOptions& options) {
  return {.credit = int64_t{4} * options.context, .lead = int64_t{2} * options.context};
}

}  // namespace

BatchingEngine::BatchingEngine(Parts parts)
    : options_(parts.options),
      model_(std::move(parts.model)),
      config_(whole_config(model_->config(), parts.kv->accounting().rank_totals().ranks())),
      tiers_(std::move(parts.tiers)),
      kv_(std::move(parts.kv)),
      backend_(parts.backend),
      stream_(parts.stream),
      ranks_(options_.ranks),
      intake_(options_, config_, *kv_, ranks_),
      counters_(*kv_, tiers_.get(), options_.kv_bytes),
      scheduler_({options_.max_step_tokens, options_.max_sequences,
                  options_.speculation ? kDraftingTokens : 0,
                  tenant_limits(options_).lead * kVirtualToken,
                  options_.max_sequences + options_.max_queue}),
      tenants_(tenant_limits(options_), options_.max_sequences + options_.max_queue),
      admission_(*kv_, tiers_.get(), options_.max_sequences),
      candidates_(*kv_, options_.max_sequences, options_.max_sequences + options_.max_queue),
      wishes_(*kv_),
      replay_(*kv_),
      builder_(*kv_, {options_.max_step_tokens, options_.max_sequences}),
      speculation_(*kv_, std::move(parts.draft_model), options_.max_sequences),
      pooler_(*model_, backend_, stream_),
      sampler_(std::move(parts.sampler),
               StepMasks(ranks_, config_.vocab, options_.max_sequences, backend_, stream_), *model_,
               stream_) {
  const auto sequences = static_cast<size_t>(options_.max_sequences);
  const size_t inside = sequences + static_cast<size_t>(options_.max_queue);
  sequences_.reserve(inside);
  inputs_.messages.reserve(3 * inside);
  released_slots_.reserve(sequences);
}

// ---- any thread

void BatchingEngine::start() {
  thread_.start([this] { run(); });
}

void BatchingEngine::stop() {
  intake_.queue().close();
  if (thread_.stop() && ranks_.leads()) {
    step();
  }
}

// ---- engine thread

void BatchingEngine::run() {
  backend_.attach_thread(stream_);
  while (!ended_) {
    if (!step() && !ended_) {
      intake_.queue().wait();
    }
  }
}

void BatchingEngine::follow() {
  TESSERA_CHECK(!ranks_.leads(), "the leader does not follow");
  backend_.attach_thread(stream_);
  while (!ended_) {
    step();
  }
}

bool BatchingEngine::step() {
  if (ended_) {
    return false;
  }
  receive_requests();
  if (inputs_.ends) {
    end_all();
    return false;
  }
  end_overdue();
  plan();
  if (last_plan().empty() && !replay_.acts()) {
    const bool demotes = kv_->prefixes().demote_some(kDemotedInStep);
    counters_.publish();  // a pin may have expired
    counters_.publish_outline();
    return wait_for_stores() || demotes;
  }
  reserve();
  if (!last_plan().runs.empty() || replay_.run().has_value()) {
    forward();
    sample();
    note_rate();
    admission_.insert_prompts(last_plan(), sequences_);
    kv_->compress(builder_.slots());
    admission_.insert_sections(last_plan(), sequences_);
    wishes_.keep_prompts(last_plan(), sequences_, inputs_.now);
    replay_.finish();
  }
  kv_->prefixes().demote_some(kDemotedInStep);
  kv_->prefixes().save_some(kSavedInStep);
  publish();
  return true;
}

// A step of few prompt tokens reads all weights for them, as every step does, so it tells little of
// what a prompt takes.
void BatchingEngine::note_rate() {
  if (tiers_ != nullptr && prefilled_ >= kKvGroup) {
    const std::chrono::duration<double> took = options_.clock() - inputs_.now;
    tiers_->note_step(prefilled_, took.count());
  }
}

// Messages that arrive are received a millisecond later.
// Returns: true if a sequence waits for its blocks, or blocks wait to be written.
bool BatchingEngine::wait_for_stores() {
  const bool saves = kv_->prefixes().save_some(kSavedInStep);
  const bool waits = tiers_ != nullptr && (saves || admission_.restoring().holds());
  if (waits) {
    admission_.restoring().wait();
  }
  return waits;
}

void BatchingEngine::receive_requests() {
  intake_.receive(inputs_);
  for (Message& message : inputs_.messages) {
    if (message.samples.empty() && message.cancelled == 0) {
      replay_.give_up();
      admission_.restoring().give_up();
      kv_->prefixes().flush();
      speculation_.forget();
    }
    admission_.record_prompt(message.samples);
    for (auto& sample : message.samples) {
      sequences_.push_back(std::move(sample));  // plan() sorts them
    }
    const auto cancelled =
        std::find_if(sequences_.begin(), sequences_.end(),
                     [&](const auto& sequence) { return sequence->id() == message.cancelled; });
    if (cancelled != sequences_.end()) {
      (*cancelled)->end(FinishReason::cancelled);
    }
  }
  if (!inputs_.messages.empty()) {
    publish();
  }
}

void BatchingEngine::end_overdue() {
  bool ended = false;
  for (const auto& sequence : sequences_) {
    const bool was_admitted = sequence->place().time().has_value();
    absl::Status time = sequence->request().check_time(inputs_.now, was_admitted);
    if (!time.ok()) {
      sequence->end(FinishReason::cancelled, std::move(time));
      ended = true;
    }
  }
  if (ended) {
    publish();
  }
}

void BatchingEngine::plan() {
  tenants_.arrange(sequences_);
  if (options_.speculation) {
    speculation_.draft(sequences_);
  }
  admission_.relieve_pressure(sequences_, counters_.counting().running, inputs_.now);
  admission_.restore(sequences_, inputs_.now);
  if (wishes_.end_prefetches(sequences_, admission_.restoring().enabled(), inputs_.now)) {
    publish();
  }
  plan_sequences();
  if (last_plan().lacks_pages && replay_.holds_pages()) {
    replay_.give_up();
    plan_sequences();
  }
  while (last_plan().lacks_pages && kv_->prefixes().yield_pins()) {
    plan_sequences();
  }
  replay_.plan(last_plan());
}

void BatchingEngine::plan_sequences() {
  const std::span<const Candidate> candidates = candidates_.of(sequences_);
  if (ranks_.count() > 1) {
    ranks_.verify_identical(step_digest(candidates, sequences_, kv_->accounting()),
                            counters_.counting().steps);
  }
  KvBudget budget = kv_->planning().budget();
  budget.replay_holds = replay_.holds_pages();
  scheduler_.plan(candidates, budget);
}

// A sequence that cannot be recomputed bit for bit is swapped out to host memory, where there is
// room.
KvSlot BatchingEngine::preempt(Sequence& sequence) {
  const KvSlot& slot = sequence.state().running()->slot;
  admission_.insert_stored(sequence, slot, false);
  if (kv_->recomputable(slot)) {
    return sequence.state().preempt();
  }
  std::optional<SwappedKv> swapped = kv_->swap_out(slot);
  return swapped.has_value() ? sequence.state().preempt(*std::move(swapped))
                             : sequence.state().preempt();
}

void BatchingEngine::reserve() {
  released_slots_.clear();
  for (const int32_t preempted : last_plan().preempted) {
    released_slots_.push_back(preempt(*sequences_[static_cast<size_t>(preempted)]));
  }
  kv_->release(released_slots_);
  for (const StepPlan::Tightening& tightened : last_plan().tightened) {
    const Sequence& sequence = *sequences_[static_cast<size_t>(tightened.candidate)];
    kv_->tighten(sequence.state().running()->slot, tightened.steps);
    counters_.counting().kv_tightenings += tightened.steps;
  }
  replay_.reserve();
  const auto admitted = admission_.admit(last_plan(), sequences_, options_.clock());
  counters_.counting().cache_query_tokens += admitted.prompt_tokens;
  counters_.counting().cache_hit_tokens += admitted.cached_tokens;
  builder_.reserve(last_plan(), sequences_, replay_.run());
  for (const int32_t index : last_plan().admitted) {
    Sequence& sequence = *sequences_[static_cast<size_t>(index)];
    if (!sequence.place().time().has_value()) {
      intake_.queue().note_admission(sequence, inputs_.now);
    }
    tenants_.admit(sequence, sequence.state().stored());
  }
  counters_.counting().preemptions += std::ssize(last_plan().preempted);
  count_running();
}

void BatchingEngine::forward() {
  const StepBuilder::Built built = builder_.build(last_plan(), sequences_, replay_.run());
  counters_.counting().prompt_tokens += built.prefilled;
  prefilled_ = built.prefilled;
  counters_.counting().kv_replayed_tokens += built.replayed;
  model_->forward(builder_.batch(), kv_->view(), stream_);
  ++counters_.counting().steps;
}

void BatchingEngine::sample() {
  pooler_.pool(builder_.hidden_rows(), sequences_);
  counters_.counting().generated_tokens += sampler_.sample(builder_.logits_rows(), sequences_);
  speculation_.settle(last_plan(), sequences_, counters_.counting());
  for (const StepPlan::Run& run : last_plan().runs) {
    Sequence& sequence = *sequences_[static_cast<size_t>(run.candidate)];
    if (run.samples) {
      tenants_.charge_tokens(sequence, 1 + run.drafted);
    }
    if (run.samples && !sequence.ended() && sequence.tokens().full()) {
      sequence.end(FinishReason::length);  // prefill only, max_tokens is 0
    }
  }
}

// Releases slots and updates the statistics before it calls any sink. So a client that receives
// on_finish sees the pages free and the statistics up to date.
void BatchingEngine::publish() {
  released_slots_.clear();
  for (const auto& sequence : sequences_) {
    const SequenceState::Running* running = sequence->state().running();
    if (running != nullptr && sequence->ended()) {
      const KvUsage usage = kv_->accounting().usage(running->slot);
      admission_.insert_stored(*sequence, running->slot, true);
      if (sequence->complete()) {
        tenants_.finish(*sequence);
      }
      released_slots_.push_back(sequence->finish(usage));
    }
  }
  kv_->release(released_slots_);
  for (const auto& sequence : sequences_) {
    if (sequence->ended() && !inputs_.ends) {
      wishes_.finish(*sequence, inputs_.now);
    }
  }
  count_running();
  counters_.publish();
  const auto now = options_.clock();
  for (const auto& sequence : sequences_) {
    sequence->publish(now);
    if (sequence->ended() && ranks_.leads()) {
      intake_.queue().remove(*sequence);
    }
  }
  std::erase_if(sequences_, [](const auto& sequence) { return sequence->ended(); });
}

void BatchingEngine::count_running() {
  EngineStats& counting = counters_.counting();
  counting.running = 0;
  counting.waiting = 0;
  for (const auto& sequence : sequences_) {
    counting.running += sequence->state().running() != nullptr ? 1 : 0;
    counting.waiting += sequence->state().running() == nullptr && !sequence->ended() ? 1 : 0;
  }
  intake_.queue().set_running(sequences_);
}

std::chrono::steady_clock::time_point BatchingEngine::end_of_saving() const {
  const auto now = std::chrono::steady_clock::now();
  const auto drained = drained_.load();
  const auto begin = drained == std::chrono::steady_clock::time_point() ? now : drained;
  return std::max(begin + options_.tiers.save_time, now + kLeastSaveTime);
}

void BatchingEngine::end_all() {
  replay_.give_up();
  for (const auto& sequence : sequences_) {
    sequence->end(FinishReason::cancelled);
  }
  publish();
  kv_->prefixes().save_all(end_of_saving());
  counters_.publish();
  ended_ = true;
}

}  // namespace tessera
