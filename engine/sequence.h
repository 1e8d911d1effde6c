#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "engine/kv/kv_slot.h"
#include "engine/kv/kv_usage.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/sequence_outbox.h"
#include "engine/sequence_place.h"
#include "engine/sequence_prefix.h"
#include "engine/sequence_request.h"
#include "engine/sequence_state.h"
#include "engine/sequence_tokens.h"

namespace tessera {

// One sample of a request in the engine. Five parts know one thing each:
//   tokens()  of the prompt, generated and drafted
//   place()   when it has its turn, among the sequences of all tenants
//   prefix()  what it takes from the prefix cache and leaves there
//   state()   waiting, running with a slot, swapped out or finished
//   outbox()  what its client is told
//
// The life of a streamed chat. A client's thread constructs its sequences and queues them
// (RequestIntake). From then on the engine's thread alone uses them, in each step (BatchingEngine):
//   1. TenantClock::arrange gives each its place.
//   2. StepCandidates looks up the prompts of waiting ones and shows all to the Scheduler, which
//      decides who runs and how many tokens each computes (StepPlan).
//   3. PrefixAdmission admits waiting ones: admit() gives a slot, which begins with the tokens that
//      the prefix cache has. A preempted one gives its slot back and waits again.
//   4. The model computes *pending* tokens, which are known but not stored yet: first chunks of the
//      prompt, later the token chosen last. StepBuilder marks them as stored.
//   5. Behind the last pending token StepSampler chooses the next one: append().
//   6. publish() sends new tokens to the client. After a stop id, the last token, a cancellation
//      or a failure it sends the end too, and the sequence is gone.
class Sequence {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Creates sample number `sample` of a request whose first sample has the id `request_id`.
  // Requires: the request passed the engine's checks; in particular it fits the context. `shared`
  // is SequenceRequest::of() the same.
  Sequence(RequestId request_id, size_t sample, const EngineRequest& request,
           std::shared_ptr<const SequenceRequest> shared, const SequenceDefaults& defaults);

  RequestId id() const { return id_; }
  RequestId request_id() const { return request_id_; }
  const SequenceRequest& request() const { return *request_; }  // shared by its samples
  const SamplingParams& sampling() const { return sampling_; }  // with a seed of its own

  SequenceTokens& tokens() { return tokens_; }
  const SequenceTokens& tokens() const { return tokens_; }
  SequencePlace& place() { return place_; }
  const SequencePlace& place() const { return place_; }
  SequencePrefix& prefix() { return prefix_; }
  const SequencePrefix& prefix() const { return prefix_; }
  SequenceState& state() { return state_; }
  const SequenceState& state() const { return state_; }
  SequenceOutbox& outbox() { return outbox_; }
  const SequenceOutbox& outbox() const { return outbox_; }

  // ---- changes of more than one part

  // Requires: waiting or swapped out, not ended.
  void admit(KvSlot slot, Time now);
  // Appends a chosen token, which may be a drafted one.
  // Requires: SequenceTokens::chooses_after() the last stored token, or one before a drafted token.
  // Returns: false if it is a stop id, which is not kept.
  bool append(const Sampled& next);
  // Ends a step that has stored `drafted` > 0 drafted tokens: forgets those that were not chosen.
  // The number of stored tokens is then that of the tokens before them.
  // Returns: number of drafted tokens that were chosen.
  int32_t settle_draft(int32_t drafted);
  // Ends it, once. A running sequence keeps its slot until finish().
  void end(FinishReason reason, absl::Status status = absl::OkStatus());
  bool ended() const { return finish_.has_value(); }
  bool complete() const;  // ended by a stop id or by its length, not cancelled or failed
  // Takes the slot of a running sequence that has ended. usage: of that slot.
  // Returns: the slot, for KvCache::release.
  KvSlot finish(const KvUsage& usage);
  // Sends the tokens of append() and the finish of end() to the event sink.
  void publish(Time now);

  // Returns: maximum number of first tokens that it may take from the prefix cache.
  int32_t max_cached_tokens() const {
    return prefix_.max_cached_tokens(outbox_.first_unobserved());
  }

 private:
  RequestId id_;
  RequestId request_id_;
  std::shared_ptr<const SequenceRequest> request_;
  SamplingParams sampling_;
  SequenceTokens tokens_;
  SequencePlace place_;
  SequencePrefix prefix_;
  SequenceState state_;
  SequenceOutbox outbox_;
  std::optional<Time> admitted_;  // first admission
  std::optional<std::chrono::duration<double>> prefill_time_;
  std::optional<Finish> finish_;
};

// Unfinished sequences in scheduling order, or the samples of one request. Not owned.
using Sequences = std::span<const std::unique_ptr<Sequence>>;

}  // namespace tessera
