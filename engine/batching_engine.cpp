#include "engine/batching_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "models/shard.h"
#include "models/status_macros.h"

namespace tessera {
namespace {

size_t size(int64_t count) {
  return static_cast<size_t>(count);
}

absl::Status check_ids(const char* field, const std::vector<int32_t>& ids, int32_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", i, "] is ", ids[i], ", the vocabulary has ", vocab, " tokens"));
    }
  }
  return absl::OkStatus();
}

// Checks the number of tokens. The arena holds at least one whole context, so a request that fits
// the context can run.
absl::Status check_room(const EngineRequest& request, int32_t context) {
  const size_t prompt = request.prompt.size();
  if (!request.forced.empty()) {
    return std::cmp_less_equal(prompt + request.forced.size(), context)
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat("the prompt has ", prompt, " tokens and ", request.forced.size(),
                                  " are forced to follow, the context holds ", context));
  }
  if (request.max_tokens == 0) {
    return std::cmp_less_equal(prompt, context)
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat("the prompt has ", prompt,
                                                         " tokens, the context holds ", context));
  }
  return std::cmp_less(prompt, context)
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("the prompt has ", prompt,
                                                       " tokens; with at least one more, ",
                                                       "the context holds ", context));
}

}  // namespace

BatchingEngine::BatchingEngine(Parts parts)
    : options_(parts.options),
      model_(std::move(parts.model)),
      config_(whole_config(model_->config(), parts.kv->accounting().rank_totals().ranks())),
      kv_(std::move(parts.kv)),
      backend_(parts.backend),
      stream_(parts.stream),
      queue_(options_.max_queue, options_.max_sequences),
      scheduler_({options_.max_step_tokens, options_.max_sequences}),
      ranks_(options_.ranks),
      sampler_(std::move(parts.sampler)) {
  const size_t sequences = size(options_.max_sequences);
  const size_t inside = sequences + size(options_.max_queue);
  sequences_.reserve(inside);
  candidates_.reserve(inside);
  inputs_.messages.reserve(3 * inside);
  plan_.counts.reserve(inside);
  plan_.evicted.reserve(inside);
  plan_.runs.reserve(sequences);
  plan_.admitted.reserve(sequences);
  plan_.preempted.reserve(sequences);
  plan_.forks.reserve(sequences);
  plan_.waiting.reserve(inside);
  reservations_.reserve(sequences);
  released_slots_.reserve(sequences);
  forks_.reserve(sequences);
  running_slots_.reserve(sequences);
  unlocked_pages_.reserve(sequences);
  batch_tokens_.reserve(size(options_.max_step_tokens));
  batch_positions_.reserve(size(options_.max_step_tokens));
  batch_sequences_.reserve(sequences);
  batch_scorings_.reserve(sequences);
  stored_slots_.reserve(sequences);
  logits_rows_.reserve(size(options_.max_step_tokens));
  slice_rows_.reserve(size(model_->max_logits_rows()));

  const KvArenaShape& shape = kv_->shape();
  const int64_t ranks = kv_->accounting().rank_totals().ranks();
  counting_.pages_total = ranks * shape.pages;
  counting_.page_bytes = shape.page_bytes;
  counting_.page_tokens = kv_->planning().budget().page_tokens;
  counting_.residual_bytes = ranks * shape.slots * shape.slot_residual_bytes();
  counting_.table_bytes = ranks * options_.kv_bytes - counting_.residual_bytes -
                          counting_.pages_total * counting_.page_bytes;
  counting_.token_capacity = kv_->planning().token_capacity();
  counting_.prefix_block_tokens = kv_->prefixes().block_tokens();
  update_stats();
}

// ---- any thread

absl::StatusOr<RequestId> BatchingEngine::submit(EngineRequest request) {
  TESSERA_CHECK(!request.sinks.empty() &&
                    std::count(request.sinks.begin(), request.sinks.end(), nullptr) == 0,
                "a request has at least one sink, and no null sink");
  TESSERA_RETURN_IF_ERROR(check(request));
  const RequestId first_id = last_id_.fetch_add(request.sinks.size()) + 1;
  Message message{.samples = make_samples(first_id, request)};
  if (ranks_.count() > 1) {
    message.request = std::make_unique<EngineRequest>(std::move(request));
  }
  TESSERA_RETURN_IF_ERROR(queue_.push(std::move(message)));
  return first_id;
}

absl::Status BatchingEngine::check(const EngineRequest& request) const {
  const int32_t vocab = config().vocab;
  if (request.prompt.empty()) {
    return absl::InvalidArgumentError("the prompt is empty");
  }
  if (std::cmp_greater(request.sinks.size(), options_.max_queue)) {
    return absl::InvalidArgumentError(absl::StrCat("the request has ", request.sinks.size(),
                                                   " samples, the queue takes ",
                                                   options_.max_queue));
  }
  if (request.max_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", request.max_tokens, ", it must be 0 or more"));
  }
  for (const absl::Status& status :
       {check_room(request, options_.context), check_ids("prompt", request.prompt, vocab),
        check_ids("stop_ids", request.stop_ids, vocab), check_ids("forced", request.forced, vocab),
        check_sampling(request.sampling, vocab),
        request.kv.has_value() ? kv_->check(request.kv->policy) : absl::OkStatus()}) {
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

void BatchingEngine::start() {
  const std::lock_guard lock(thread_mutex_);
  TESSERA_CHECK(!stopped_ && !thread_.joinable(), "an engine is started once");
  thread_ = std::thread([this] { run(); });
}

void BatchingEngine::stop() {
  const std::lock_guard lock(thread_mutex_);
  queue_.close();
  if (thread_.joinable()) {
    thread_.join();
  } else if (!stopped_ && ranks_.leads()) {
    step();
  }
  stopped_ = true;
}

EngineStats BatchingEngine::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

// ---- engine thread

void BatchingEngine::run() {
  backend_.attach_thread(stream_);
  while (!ended_) {
    if (!step() && !ended_) {
      queue_.wait();
    }
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
  if (plan_.empty()) {
    update_stats();  // a pin may have expired
    return false;
  }
  reserve();
  if (!plan_.runs.empty()) {
    forward();
    sample();
    insert_prompts();
    kv_->compress(stored_slots_);
  }
  publish();
  return true;
}

void BatchingEngine::receive_requests() {
  receive_inputs();
  for (Message& message : inputs_.messages) {
    if (message.samples.empty() && message.cancelled == 0) {
      kv_->prefixes().flush();
    }
    record_prompt(message.samples);
    for (auto& sample : message.samples) {
      const auto place = std::upper_bound(
          sequences_.begin(), sequences_.end(), sample->order(),
          [](int64_t order, const auto& sequence) { return order < sequence->order(); });
      sequences_.insert(place, std::move(sample));
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
    if (sequence->overdue(inputs_.now)) {
      sequence->end(FinishReason::cancelled,
                    absl::DeadlineExceededError("the request's deadline has passed"));
      ended = true;
    }
  }
  if (ended) {
    publish();
  }
}

void BatchingEngine::plan() {
  relieve_pressure();
  candidates_.clear();
  for (size_t i = 0; i < sequences_.size(); ++i) {
    candidates_.push_back(candidate_of(i));
    find_prefix_in_progress(i);
  }
  count_unlocked();
  verify_identical_step();
  plan_ = scheduler_.plan(candidates_, kv_->planning().budget(), std::move(plan_));
}

KvDemand BatchingEngine::demand_of(const Sequence& sequence) const {
  const KvPlanning& planning = kv_->planning();
  if (const Sequence::Running* running = sequence.running()) {
    return planning.demand(running->slot);
  }
  return sequence.swapped_out() != nullptr
             ? planning.demand(sequence.swapped_out()->kv)
             : planning.demand(sequence.kv_policy(),
                               static_cast<int32_t>(sequence.prompt().size()));
}

// A sequence that cannot be recomputed bit for bit is swapped out to host memory.
KvSlot BatchingEngine::preempt(Sequence& sequence) {
  const KvSlot& slot = sequence.running()->slot;
  insert_stored(sequence, slot, false);
  return kv_->recomputable(slot) ? sequence.preempt() : sequence.preempt(kv_->swap_out(slot));
}

void BatchingEngine::reserve() {
  released_slots_.clear();
  for (const int32_t preempted : plan_.preempted) {
    released_slots_.push_back(preempt(*sequences_[size(preempted)]));
  }
  kv_->release(released_slots_);
  attach_admitted();
  forks_.clear();
  for (const StepPlan::Fork& fork : plan_.forks) {
    sequences_[size(fork.candidate)]->store(fork.tokens);
    forks_.push_back(
        {.source = slot_of(fork.source), .target = slot_of(fork.candidate), .tokens = fork.tokens});
  }
  kv_->fork(forks_);
  reservations_.clear();
  for (const StepPlan::Run& run : plan_.runs) {
    reservations_.push_back({slot_of(run.candidate), sequence_of(run).stored() + run.count});
  }
  kv_->reserve(reservations_);
  counting_.preemptions += std::ssize(plan_.preempted);
  count_running();
}

void BatchingEngine::forward() {
  batch_tokens_.clear();
  batch_positions_.clear();
  batch_sequences_.clear();
  batch_scorings_.clear();
  stored_slots_.clear();
  logits_rows_.clear();
  for (const StepPlan::Run& run : plan_.runs) {
    Sequence& sequence = sequence_of(run);
    const KvSlot& slot = slot_of(run.candidate);
    const int32_t stored = sequence.stored();
    batch_sequences_.push_back({.slot = slot.index(),
                                .first_row = static_cast<int32_t>(batch_tokens_.size()),
                                .count = run.count,
                                .context = stored,
                                .tiers = kv_->tiers(slot),
                                .newest = sequence.kv_policy().newest_dense(),
                                .prompt = static_cast<int32_t>(sequence.prompt().size())});
    batch_scorings_.push_back(kv_->scoring(slot));
    stored_slots_.push_back(&slot);
    const auto tokens = sequence.tokens().subspan(size(stored), size(run.count));
    batch_tokens_.insert(batch_tokens_.end(), tokens.begin(), tokens.end());
    for (int32_t i = 0; i < run.count; ++i) {
      batch_positions_.push_back(stored + i);
    }
    request_logits(run, stored);
    const bool decodes =
        std::cmp_greater_equal(stored, sequence.prompt().size()) && run.samples && run.count == 1;
    counting_.prompt_tokens += decodes ? 0 : run.count;
    sequence.store(run.count);
  }
  if (std::none_of(batch_scorings_.begin(), batch_scorings_.end(),
                   [](const KvScoring& scoring) { return scoring.token_scores; })) {
    batch_scorings_.clear();
  }
  model_->forward({batch_tokens_, batch_positions_, batch_sequences_, batch_scorings_}, kv_->view(),
                  stream_);
  ++counting_.steps;
}

// Adds the rows of logits that the run needs. Requires: its tokens are the last ones of the batch.
void BatchingEngine::request_logits(const StepPlan::Run& run, int32_t first_position) {
  const Sequence& sequence = sequence_of(run);
  const auto first_row = static_cast<int32_t>(batch_tokens_.size()) - run.count;
  for (int32_t i = 0; i < run.count; ++i) {
    const bool chooses = run.samples && i + 1 == run.count && !sequence.full();
    const bool seen =
        sequence.observes(first_position + i) || (chooses && Sampler::sees(sequence.sampling()));
    if (chooses || seen) {
      logits_rows_.push_back({first_row + i, run.candidate, first_position + i, chooses, seen});
    }
  }
}

// Logits are computed in slices, because a request may observe all positions of its prompt. Rows
// that the host reads come first, so that the host copies one contiguous piece of a slice. Rows of
// one sequence stay in order of position.
void BatchingEngine::sample() {
  std::sort(logits_rows_.begin(), logits_rows_.end(), [](const LogitsRow& a, const LogitsRow& b) {
    return std::pair(!a.seen, a.batch_row) < std::pair(!b.seen, b.batch_row);
  });
  const auto slice = size(model_->max_logits_rows());
  for (size_t first = 0; first < logits_rows_.size(); first += slice) {
    const size_t count = std::min(slice, logits_rows_.size() - first);
    sample_slice(std::span(logits_rows_).subspan(first, count));
  }
  for (const StepPlan::Run& run : plan_.runs) {
    Sequence& sequence = sequence_of(run);
    if (run.samples && !sequence.ended() && sequence.full()) {
      sequence.end(FinishReason::length);  // prefill only, max_tokens is 0
    }
  }
}

void BatchingEngine::sample_slice(std::span<const LogitsRow> rows) {
  slice_rows_.clear();
  for (const LogitsRow& row : rows) {
    slice_rows_.push_back(row.batch_row);
  }
  model_->logits(slice_rows_, sampler_.begin(std::ssize(rows)), stream_);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].chooses) {
      const Sequence& sequence = *sequences_[size(rows[i].sequence)];
      sampler_.add(static_cast<int32_t>(i), {.params = sequence.sampling(),
                                             .prompt = sequence.prompt(),
                                             .generated = sequence.generated(),
                                             .stop_ids = sequence.stop_ids(),
                                             .forced = sequence.forced()});
    }
  }
  sampler_.finish(
      std::count_if(rows.begin(), rows.end(), [](const LogitsRow& row) { return row.seen; }));
  size_t choice = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].seen) {
      observe(rows[i], sampler_.seen(static_cast<int64_t>(i)));
    }
    if (rows[i].chooses) {
      choose(*sequences_[size(rows[i].sequence)], choice++);
    }
  }
}

void BatchingEngine::choose(Sequence& sequence, size_t choice) {
  if (sequence.ended()) {  // failed by observe(), because a logit is not finite
    return;
  }
  const absl::StatusOr<Sampled> next = sampler_.chosen(choice);
  if (!next.ok()) {
    sequence.end(FinishReason::failed, next.status());
    return;
  }
  counting_.generated_tokens += sequence.append(*next) ? 1 : 0;
}

// Passes a row of logits to the sink of its sequence. Positions below shareable() are computed by
// one sample for all samples of the request, so the waiting samples behind it observe them too. All
// these samples have observed the same positions before.
void BatchingEngine::observe(const LogitsRow& row, std::span<const float> logits) {
  Sequence& computed = *sequences_[size(row.sequence)];
  const int32_t position = row.position;
  if (computed.ended() || !computed.observes(position)) {
    return;
  }
  absl::StatusOr<TokenLogprobs> logprobs = TokenLogprobs{};
  if (computed.observes_prompt_logprobs(position)) {
    logprobs = sampler_.logprobs(logits, position, computed.tokens()[size(position) + 1],
                                 *computed.sampling().prompt_logprobs);
  }
  if (!logprobs.ok()) {
    computed.end(FinishReason::failed, logprobs.status());
    return;
  }
  computed.observe(position, logits, *logprobs);
  for (size_t i = size(row.sequence) + 1;
       position < computed.shareable() && i < sequences_.size() &&
       sequences_[i]->request_id() == computed.request_id();
       ++i) {
    sequences_[i]->observe(position, logits, *logprobs);
  }
}

// Releases slots and updates the statistics before it calls any sink. So a client that receives
// on_finish sees the pages free and the statistics up to date.
void BatchingEngine::publish() {
  released_slots_.clear();
  for (const auto& sequence : sequences_) {
    const Sequence::Running* running = sequence->running();
    if (running != nullptr && sequence->ended()) {
      const KvUsage usage = kv_->accounting().usage(running->slot);
      insert_stored(*sequence, running->slot, true);
      released_slots_.push_back(sequence->finish(usage));
    }
  }
  kv_->release(released_slots_);
  count_running();
  update_stats();
  const auto now = options_.clock();
  for (const auto& sequence : sequences_) {
    sequence->publish(now);
    if (sequence->ended() && ranks_.leads()) {
      queue_.remove(sequence->id());
    }
  }
  std::erase_if(sequences_, [](const auto& sequence) { return sequence->ended(); });
}

void BatchingEngine::count_running() {
  counting_.running = static_cast<int32_t>(
      std::count_if(sequences_.begin(), sequences_.end(),
                    [](const auto& sequence) { return sequence->running() != nullptr; }));
  counting_.waiting = static_cast<int32_t>(std::count_if(
      sequences_.begin(), sequences_.end(),
      [](const auto& sequence) { return !sequence->running() && !sequence->ended(); }));
  queue_.set_running(counting_.running);
}

void BatchingEngine::update_stats() {
  const KvAccounting& accounting = kv_->accounting();
  const RankTotals& totals = accounting.rank_totals();
  counting_.pages_free = accounting.all_available_pages();
  counting_.cache = kv_->prefixes().stats();
  counting_.cache.pages *= totals.ranks();
  counting_.cache.unlocked_pages *= totals.ranks();
  counting_.kv_demotions = totals.demotions();
  counting_.kv_dropped_tokens = totals.dropped_tokens();
  counting_.formats = static_cast<int32_t>(accounting.format_pages().size());
  std::copy(accounting.format_pages().begin(), accounting.format_pages().end(),
            counting_.format_pages);
  const std::lock_guard lock(stats_mutex_);
  stats_ = counting_;
}

void BatchingEngine::end_all() {
  for (const auto& sequence : sequences_) {
    sequence->end(FinishReason::cancelled);
  }
  publish();
  ended_ = true;
}

}  // namespace tessera
