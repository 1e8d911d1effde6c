#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/background_replay.h"
#include "engine/kv/kv_cache.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "models/transformer.h"

namespace tessera {

// One row of logits to compute: the logits after `position` of a sequence.
struct LogitsRow {
  int32_t batch_row = 0;
  int32_t sequence = 0;
  int32_t position = 0;
  bool chooses = false;  // the token after `position` is sampled from it
  bool seen = false;     // the logits are copied to the host, not only the sampled token
};

// One hidden state to compute, for the embedding of a sequence's prompt.
struct HiddenRow {
  int32_t batch_row = 0;
  int32_t sequence = 0;
  int32_t position = 0;
};

// Turns a plan into pages and into the model's inputs. Its memory is allocated once, for the
// largest step. Sequences are those that the plan was made from.
class StepBuilder {
 public:
  // kv: outlives this.
  StepBuilder(KvCache& kv, const SchedulerLimits& limits);

  // Forks samples from the first one of their request, then reserves pages for the groups that
  // close in the step. replay: of a background replay, if it runs.
  // Requires: preempted sequences are released, admitted ones have slots.
  void reserve(const StepPlan& plan, Sequences sequences, const std::optional<ReplayRun>& replay);

  struct Built {
    int64_t prefilled = 0;  // tokens of prompts
    int64_t replayed = 0;   // tokens of replays
  };
  // Builds the batch, and marks its tokens as stored, except those of replays.
  Built build(const StepPlan& plan, Sequences sequences, const std::optional<ReplayRun>& replay);

  // Results of build(), valid until the next call.
  Batch batch() const {
    Batch batch{tokens_, positions_, spans_, scorings_};
    batch.adapters = adapters_;
    return batch;
  }
  std::span<const KvSlot* const> slots() const { return slots_; }  // of the plan's sequences
  std::span<LogitsRow> logits_rows() { return logits_rows_; }
  std::span<const HiddenRow> hidden_rows() const { return hidden_rows_; }

 private:
  void add(const StepPlan::Run& run, const Sequence& sequence);
  void add(const ReplayRun& replay);
  void append(const SequenceSpan& span, std::span<const int32_t> tokens);
  void adapt(const Sequence& sequence);
  void request_rows(const StepPlan::Run& run, const Sequence& sequence);

  KvCache& kv_;
  std::vector<KvReservation> reservations_;
  std::vector<KvCopy> forks_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<SequenceSpan> spans_;
  std::vector<KvScoring> scorings_;  // of each sequence; empty if none has token scores
  std::vector<AdapterRows> adapters_;
  std::vector<const KvSlot*> slots_;
  std::vector<LogitsRow> logits_rows_;
  std::vector<HiddenRow> hidden_rows_;
};

}  // namespace tessera
