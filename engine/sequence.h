#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "engine/candidate.h"
#include "engine/draft.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_presets.h"
#include "engine/kv/kv_usage.h"
#include "engine/kv/prefix_cache.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "kernels/kv/kv_policy.h"

namespace tessera {

// What a waiting sequence knows of its prompt in the stores (engine/prefix_restore.h).
struct StoredPart {
  bool over = false;      // it is in the prefix cache, or no store has more of it
  bool was_read = false;  // a store was read for it
  bool held = false;      // it is not admitted before it was read
  int32_t matched = 0;    // blocks of its match when `over` was set
};

// The engine's state of one sample of a request: its tokens, its slot, its progress and its event
// sink. Constructed on the client's thread, which also reserves memory for its longest token list.
// After that only the engine thread uses it.
//
// States: Waiting -> Running -> Finished. Preemption leads from Running to Waiting or SwappedOut;
// both wait for admission. Cancellation, the deadline and Engine::stop finish a waiting sequence
// too. Only Running has a slot, and each function that leaves this state returns it.
//
// Pending tokens are known but not stored: tokens().size() - stored(). A step stores some or all of
// them; after the last one the next token is chosen and is pending itself.
class Sequence {
 public:
  struct Waiting {
    KvMatch match;  // latest match with the prefix cache, with which it will begin
    StoredPart in_stores;
  };
  struct Running {
    KvSlot slot;
    int32_t stored = 0;  // see Sequence::stored
  };
  struct SwappedOut {
    SwappedKv kv;
    int32_t stored = 0;
  };
  struct Finished {};

  // Limits and defaults of the engine, and the time of submission.
  struct Model {
    int32_t context = 0;  // maximum tokens of a sequence, prompt and completion
    std::span<const int32_t> eos_ids;
    KvPreset kv;  // of requests without a preset
    // Coarsest grade of cached prefix blocks that requests without cache_accept accept.
    KvFormat cache_accept;
    float kv_floor = 1;                         // of requests that name none
    std::chrono::steady_clock::time_point now;  // by the engine's clock
    int32_t hidden = 0;                         // values of a hidden state
  };

  // The part of a request that its samples share, because none of them changes it.
  struct Shared {
    std::vector<int32_t> stop_ids;  // in ascending order, each once
    std::vector<int32_t> forced;    // all generated tokens under teacher forcing; empty: sampled
    std::string cache_salt;         // of the request, behind the fingerprint of its adapter
    std::shared_ptr<const LoraAdapter> adapter;
    std::vector<KeptPrefix> kept;
    std::shared_ptr<PrefixTransfer> transfer;
  };
  static std::shared_ptr<const Shared> share(const EngineRequest& request, const Model& model);

  // Creates sample number `sample` of a request whose first sample has the id `request_id`.
  // Requires: the request passed the engine's checks; in particular it fits the context. `shared`
  // is its share().
  Sequence(RequestId request_id, size_t sample, const EngineRequest& request,
           std::shared_ptr<const Shared> shared, const Model& model);

  RequestId id() const { return id_; }
  RequestId request_id() const { return request_id_; }
  int64_t order() const { return order_; }  // order within its tenant, see order_of
  Candidate candidate() const;              // without the fields that need the KV cache

  // Prompt, then generated tokens.
  std::span<const int32_t> tokens() const { return std::span(tokens_).first(known_); }
  std::span<const int32_t> prompt() const { return tokens().first(prompt_tokens_); }
  std::span<const int32_t> generated() const { return tokens().subspan(prompt_tokens_); }
  std::span<const int32_t> stop_ids() const { return shared_->stop_ids; }
  const SamplingParams& sampling() const { return sampling_; }
  const LoraAdapter* adapter() const { return shared_->adapter.get(); }  // null: none
  // True if its tokens follow a grammar. The constraint is null without one, and on ranks other
  // than the leader.
  bool constrained() const { return constrained_; }
  TokenConstraint* constraint() const { return constraint_.get(); }
  // The next token under teacher forcing, which replaces the sampler's choice.
  std::optional<int32_t> forced() const;
  // Number of first tokens whose keys and values are in its slot or in its swapped-out copy (some
  // may have been dropped since). 0 for a waiting sequence that is not swapped out.
  int32_t stored() const;
  // Returns: number of first tokens that the samples of the request share by forks and compute
  // once. (shareable_tokens limits sharing through the prefix cache.) It is the prompt without
  // its last token, because each sample needs the logits of that token. With sparse formats it is
  // rounded down to whole groups and leaves out the newest tokens. 0 if the request has one sample
  // or a lossy policy.
  int32_t shareable() const { return shareable_; }

  // True if the sequence has reached max_tokens, the end of the forced tokens or the context.
  bool full() const { return known_ == max_length_; }
  bool overdue(std::chrono::steady_clock::time_point now) const;
  // True if it was never admitted and its queue timeout has passed.
  bool waited_too_long(std::chrono::steady_clock::time_point now) const;

  // The earlier of queue timeout and deadline.
  std::optional<std::chrono::steady_clock::time_point> latest_start() const {
    return start_by_.has_value() && deadline_.has_value() ? std::min(start_by_, deadline_)
           : start_by_.has_value()                        ? start_by_
                                                          : deadline_;
  }

  // ---- order among tenants, set by TenantClock
  const TenantOfRequest& tenant() const { return tenant_; }
  // Its place among admitted sequences, in virtual time. None before the first admission.
  std::optional<int64_t> place() const { return place_; }
  void set_place(int64_t place) { place_ = place; }
  // The time that orders it in the next step: its place, or the expected one before its admission.
  int64_t start() const { return start_; }
  void set_start(int64_t start) { start_ = start; }
  int64_t clock() const { return clock_; }  // of its tenant, before the step
  // slots_held: see Turn.
  void set_clock(int64_t clock, int32_t slots_held) {
    clock_ = clock;
    slots_held_ = slots_held;
  }
  // Tokens of its latest match with the prefix cache.
  int32_t matched() const { return matched_; }
  void set_matched(int32_t tokens) { matched_ = tokens; }

  // ---- state. A pointer is null in every other state, and valid until the state changes.
  Waiting* waiting() { return std::get_if<Waiting>(&state_); }
  const Waiting* waiting() const { return std::get_if<Waiting>(&state_); }
  const Running* running() const { return std::get_if<Running>(&state_); }
  const SwappedOut* swapped_out() const { return std::get_if<SwappedOut>(&state_); }
  // True after end(). A running sequence keeps its slot until finish().
  bool ended() const { return finish_.has_value(); }
  bool complete() const {  // ended by a stop id or by its length, not cancelled or failed
    return ended() &&
           (finish_->reason == FinishReason::stop || finish_->reason == FinishReason::length);
  }
  // Requires: waiting or swapped out, not ended.
  void admit(KvSlot slot, std::chrono::steady_clock::time_point now);
  // Each takes the slot from a running sequence.
  // Returns: the slot, for KvCache::release.
  KvSlot preempt();                     // keeps the tokens only: stored() is 0
  KvSlot preempt(SwappedKv swapped);    // keeps the swapped-out copy too, and stored()
  KvSlot finish(const KvUsage& usage);  // after end(), with the final usage of its slot

  // ---- prefix cache
  // Returns: the tokens known so far, with the hashes of their prefix blocks. The spans point into
  // this sequence.
  KvPrompt cache_prompt(int32_t prefix_block_tokens);
  bool uses_prefix_cache() const { return cache_.use; }
  // Returns: true if a match may mix compressed sections with whole blocks (section step): neither
  // the request nor its policy says how exact its prefix must be.
  bool accepts_sections() const { return accepts_sections_; }
  const EngineRequest::Cache& cache() const { return cache_; }
  // Returns: maximum number of first tokens that it may take from the prefix cache. Later tokens
  // must be computed for one of these reasons:
  // - the event sink has yet to receive their logits,
  // - the embedding needs their hidden states,
  // - the policy scores their queries,
  // - the residual buffer needs them unquantised,
  // - they are generated and read selected tiles (KvPolicy::one_by_one), but cached ones may have
  //   been computed as a prompt, which reads all tiles.
  int32_t max_cached_tokens() const;
  // Returns: maximum number of its first tokens that it may insert into the prefix cache.
  // - A policy that is not private: all tokens. With dense newest tokens or selected tiles
  //   (KvPolicy::one_by_one) the prompt alone, because generated tokens have read other inputs.
  // - A private policy: the prompt if the request pins it, else the recurring part of the prompt.
  //   Other tokens stay its own, because pages that a prefix block shares cannot be compressed.
  int32_t max_inserted_tokens() const { return max_inserted_tokens_; }
  int32_t max_inserted_prompt_tokens() const {  // the same for the prompt alone
    return std::min(max_inserted_tokens_, static_cast<int32_t>(prompt_tokens_));
  }
  // The first `tokens` tokens of the prompt occurred in an earlier prompt (SharedPrefixes::record).
  void mark_recurring(int32_t tokens);
  // Hash over salt, format and the prefix blocks [0, block]. Equal inputs have equal hashes.
  uint64_t path_hash(int32_t block) const { return path_hashes_[static_cast<size_t>(block)]; }
  std::span<const uint64_t> path_hashes() const { return path_hashes_; }
  int32_t hashed_blocks() const { return static_cast<int32_t>(path_hashes_.size()); }
  // After admit(): its first `tokens` tokens were attached from the prefix cache and are stored.
  void set_cached_tokens(int32_t tokens);
  // Of a prefetch, which is never admitted: the prefix cache has its first `tokens` tokens.
  void note_cached_tokens(int32_t tokens) { cached_tokens_ = tokens; }
  // The beginnings of its prompt that are to be kept, and those that are: set once, when its prompt
  // is in the cache.
  std::span<const KeptPrefix> kept() const { return shared_->kept; }
  bool is_kept() const { return is_kept_; }
  PrefixTransfer* transfer() const { return shared_->transfer.get(); }  // null: none
  void set_kept(const PromptInCache& in_cache) {
    in_cache_ = in_cache;
    is_kept_ = true;
  }

  const KvPolicy& kv_policy() const { return kv_.policy; }
  float kv_floor() const { return kv_floor_; }  // 1 for a deterministic request

  // The next `count` pending tokens, and drafted ones behind them, are stored, or will be in this
  // step.
  // Requires: a running sequence.
  void store(int32_t count);

  // ---- speculation. Drafted tokens stand behind the known ones. A step may store them together
  // with the last pending token. Then a token is chosen after each of them, as long as the chosen
  // token is the drafted one. So the text is the same as without drafts.
  // True if its next tokens may be drafted: it is sampled, by a policy that neither scores queries
  // nor reads other tokens one by one.
  bool may_draft() const;
  // Drafts at most `most` tokens from its own, in the place of those drafted before. Called before
  // each step.
  void draft(int32_t most);
  // Tokens that it may still get, without the last one, which is chosen and never computed.
  int32_t most_drafted() const { return static_cast<int32_t>(max_length_ - known_) - 1; }
  // Returns: tokens that a second model should draft, a step of which takes `step_cost` of one of
  // the first model's; often 0. Learns from being asked, so it is called once before a step.
  int32_t wish_for_draft(float step_cost);
  // Takes tokens that a second model has drafted.
  // Requires: at most most_drafted(); it has none yet.
  void take_draft(std::span<const int32_t> drafted);
  std::span<const int32_t> drafted() const { return std::span(tokens_).subspan(known_); }
  std::span<const int32_t> tokens_with_drafted() const { return tokens_; }
  // Returns: true if the token after `position` is the next one to choose. False for a position
  // behind a drafted token that was not chosen.
  bool chooses_after(int32_t position) const {
    return !ended() && !refused_ && std::cmp_equal(position + 1, known_);
  }
  // Ends a step that has stored `drafted` > 0 drafted tokens: forgets those that were not chosen,
  // and learns from it. stored() is the number of tokens before them.
  // Returns: number of drafted tokens that were chosen.
  int32_t settle_draft(int32_t drafted);

  // Positions count the sequence's tokens from 0. The logits after `position` predict the token at
  // position + 1.
  // Returns: true if the request asks for logits or prompt log probabilities after `position`, and
  // the event sink has not received them yet. The second function covers prompt log probabilities
  // only.
  bool observes(int32_t position) const;
  bool observes_prompt_logprobs(int32_t position) const;
  // Passes logits and prompt log probabilities to the event sink at once, before publish().
  // logits: [vocab]. prompt_logprobs: of the token at position + 1, if they are observed.
  void observe(int32_t position, std::span<const float> logits,
               const TokenLogprobs& prompt_logprobs);

  // Returns: true if the request's embedding needs the hidden state at `position`, and does not
  // have it yet.
  bool pools(int32_t position) const { return pool_.has_value() && pool_->wants(position); }
  // Adds the hidden state at `position`, [hidden]. The last one completes the embedding, which the
  // event sink receives at once.
  void pool(int32_t position, std::span<const float> hidden);

  // Appends a chosen token, which may be a drafted one.
  // Requires: chooses_after() the last stored token, or one before a drafted token.
  // Returns: false if it is a stop id, which is not kept.
  bool append(const Sampled& next);
  void end(FinishReason reason, absl::Status status = absl::OkStatus());

  // Sends the tokens of append() and the finish of end() to the event sink.
  void publish(std::chrono::steady_clock::time_point now);

 private:
  KvSlot take_slot();

  RequestId request_id_;
  RequestId id_;
  int64_t order_;
  int32_t priority_;
  TenantOfRequest tenant_;
  std::optional<int64_t> place_;
  int64_t start_ = 0;
  int64_t clock_ = 0;
  int32_t slots_held_ = 0;
  int32_t matched_ = 0;
  size_t prompt_tokens_;
  int32_t shareable_;
  size_t max_length_;            // maximum size of tokens_
  size_t known_;                 // tokens of prompt and completion
  std::vector<int32_t> tokens_;  // these, then drafted tokens
  Draft draft_;
  DraftLength length_of_model_;
  bool drafted_by_model_ = false;
  bool refused_ = false;  // since draft(), a token was chosen that was not the drafted one
  std::shared_ptr<const Shared> shared_;
  SamplingParams sampling_;
  bool speculates_;
  bool constrained_;
  std::unique_ptr<TokenConstraint> constraint_;
  bool observe_logits_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::optional<std::chrono::steady_clock::time_point> start_by_;
  std::shared_ptr<EventSink> sink_;

  KvPreset kv_;
  float kv_floor_;
  KvUsage kv_usage_;
  EngineRequest::Cache cache_;
  KvFormat cache_accept_;
  bool accepts_sections_;
  std::vector<uint64_t> block_hashes_;
  std::vector<uint64_t> path_hashes_;
  int32_t max_inserted_tokens_ = std::numeric_limits<int32_t>::max();
  std::optional<int32_t> cached_tokens_;  // of the first admission
  PromptInCache in_cache_;
  bool is_kept_ = false;
  bool told_ = false;  // the event sink has received in_cache_

  std::chrono::steady_clock::time_point submitted_;
  std::optional<std::chrono::steady_clock::time_point> admitted_;  // first admission
  std::optional<std::chrono::duration<double>> prefill_time_;

  std::optional<HiddenPool> pool_;  // of requests with a pooling
  int32_t next_observed_ = 0;       // the event sink has received the positions before it
  std::variant<Waiting, Running, SwappedOut, Finished> state_;
  std::optional<Finish> finish_;

  struct Unpublished {
    int32_t token = 0;
    TokenLogprob logprob;
    std::vector<TokenLogprob> top;
    int32_t rank = 0;
  };
  std::vector<Unpublished> unpublished_;  // room for the tokens of a step
  size_t unpublished_tokens_ = 0;
};

// Unfinished sequences in scheduling order, or the samples of one request. Not owned.
using Sequences = std::span<const std::unique_ptr<Sequence>>;

}  // namespace tessera
