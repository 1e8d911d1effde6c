#include "engine/step_sampler.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

// Returns: false if an earlier slice has refused a drafted token before the row's next one.
bool may_choose(const Sequence& sequence, const LogitsRow& row) {
  return !sequence.ended() && std::cmp_less(row.position, sequence.tokens().with_drafted().size());
}

// Returns: the tokens after the prompt up to the row's, with the drafted ones among them.
std::span<const int32_t> generated_before(const Sequence& sequence, const LogitsRow& row) {
  return sequence.tokens()
      .with_drafted()
      .first(static_cast<size_t>(row.position) + 1)
      .subspan(sequence.tokens().prompt().size());
}

}  // namespace

StepSampler::StepSampler(Sampler sampler, StepMasks masks, Transformer& model, Stream stream)
    : sampler_(std::move(sampler)), masks_(std::move(masks)), model_(model), stream_(stream) {
  slice_rows_.reserve(static_cast<size_t>(model.max_logits_rows()));
  slice_chooses_.reserve(static_cast<size_t>(model.max_logits_rows()));
}

// Logits are computed in slices, because a request may observe all positions of its prompt. Rows
// that the host reads come first, so that the host copies one contiguous piece of a slice. Rows of
// one sequence stay in order of position.
int64_t StepSampler::sample(std::span<LogitsRow> rows, Sequences sequences) {
  std::sort(rows.begin(), rows.end(), [](const LogitsRow& a, const LogitsRow& b) {
    return std::pair(!a.seen, a.batch_row) < std::pair(!b.seen, b.batch_row);
  });
  masks_.fill(rows, sequences);  // while a device still computes the forward pass
  const auto slice = static_cast<size_t>(model_.max_logits_rows());
  int64_t appended = 0;
  for (size_t first = 0; first < rows.size(); first += slice) {
    appended += sample_slice(rows.subspan(first, std::min(slice, rows.size() - first)), sequences);
  }
  return appended;
}

int64_t StepSampler::sample_slice(std::span<const LogitsRow> rows, Sequences sequences) {
  slice_rows_.clear();
  for (const LogitsRow& row : rows) {
    slice_rows_.push_back(row.batch_row);
  }
  model_.logits(slice_rows_, sampler_.begin(std::ssize(rows)), stream_);
  slice_chooses_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sequence& sequence = *sequences[static_cast<size_t>(rows[i].sequence)];
    slice_chooses_.push_back(rows[i].chooses && may_choose(sequence, rows[i]));
    if (slice_chooses_.back()) {
      sampler_.add(static_cast<int32_t>(i), {.params = sequence.sampling(),
                                             .prompt = sequence.tokens().prompt(),
                                             .generated = generated_before(sequence, rows[i]),
                                             .stop_ids = sequence.request().stop_ids,
                                             .forced = sequence.tokens().forced(),
                                             .mask = masks_.of(rows[i])});
    }
  }
  sampler_.finish(
      std::count_if(rows.begin(), rows.end(), [](const LogitsRow& row) { return row.seen; }));
  size_t choice = 0;
  int64_t appended = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].seen) {
      observe(rows[i], sampler_.seen(static_cast<int64_t>(i)), sequences);
    }
    if (slice_chooses_[i]) {
      Sequence& sequence = *sequences[static_cast<size_t>(rows[i].sequence)];
      appended += choose(sequence, rows[i].position, choice++) ? 1 : 0;
    }
  }
  return appended;
}

// Returns: true if a token was appended.
bool StepSampler::choose(Sequence& sequence, int32_t position, size_t choice) {
  // Behind a refused draft, or failed by observe().
  if (sequence.ended() || !sequence.tokens().chooses_after(position)) {
    return false;
  }
  const absl::StatusOr<Sampled> next = sampler_.chosen(choice);
  if (!next.ok()) {
    sequence.end(FinishReason::failed, next.status());
    return false;
  }
  return sequence.append(*next);
}

// Passes a row of logits to the sink of its sequence. Positions below shareable() are computed by
// one sample for all samples of the request, so the waiting samples behind it observe them too. All
// these samples have observed the same positions before.
void StepSampler::observe(const LogitsRow& row, std::span<const float> logits,
                          Sequences sequences) {
  Sequence& computed = *sequences[static_cast<size_t>(row.sequence)];
  const int32_t position = row.position;
  if (computed.ended() || !computed.outbox().observes(position)) {
    return;
  }
  absl::StatusOr<TokenLogprobs> logprobs = TokenLogprobs{};
  if (computed.outbox().observes_prompt_logprobs(position)) {
    logprobs = sampler_.logprobs(logits, position,
                                 computed.tokens().known()[static_cast<size_t>(position) + 1],
                                 *computed.sampling().prompt_logprobs);
  }
  if (!logprobs.ok()) {
    computed.end(FinishReason::failed, logprobs.status());
    return;
  }
  computed.outbox().observe(position, logits, *logprobs);
  for (size_t i = static_cast<size_t>(row.sequence) + 1;
       position < computed.request().shareable && i < sequences.size() &&
       sequences[i]->request_id() == computed.request_id();
       ++i) {
    sequences[i]->outbox().observe(position, logits, *logprobs);
  }
}

}  // namespace tessera
