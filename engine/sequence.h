#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

namespace tessera {

// What the engine knows of one sample of a request on its way. Made on the client's thread with all
// the memory it will need; from then on the engine's thread alone owns it.
class Sequence {
 public:
  struct Model {
    int32_t context = 0;  // tokens a sequence may have
    std::span<const int32_t> eos_ids;
    KvPreset kv;                                // of requests that ask for none
    KvFormat cache_accept;                      // the same
    std::chrono::steady_clock::time_point now;  // by the engine's clock
  };

  // One sample of a request whose first sample has the id `request_id`. Requires: the request was
  // checked: it fits the context.
  Sequence(RequestId request_id, size_t sample, const EngineRequest& request, const Model& model);

  RequestId id() const { return id_; }
  RequestId request_id() const { return request_id_; }
  int64_t rank() const { return rank_; }
  Candidate candidate() const;

  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> prompt() const { return tokens().first(prompt_tokens_); }
  std::span<const int32_t> generated() const { return tokens().subspan(prompt_tokens_); }
  std::span<const int32_t> stop_ids() const { return stop_ids_; }
  const SamplingParams& sampling() const { return sampling_; }
  std::optional<int32_t> forced() const;  // the token that comes next, whatever the sampler says
  int32_t stored() const { return stored_; }
  // Of a request with several samples, the tokens they have in common and compute once: all of the
  // prompt but its last, whose logits each sample wants for itself.
  int32_t shareable() const { return shareable_; }

  // Nothing may be appended any more: the length that was asked for, or the context's.
  bool full() const { return tokens_.size() == max_length_; }
  bool overdue(std::chrono::steady_clock::time_point now) const;

  // waiting -> running -> waiting (preempted) or ended
  bool running() const { return slot_.has_value(); }
  bool ended() const { return finish_.has_value(); }
  bool complete() const {  // ended, and not before its time
    return ended() &&
           (finish_->reason == FinishReason::stop || finish_->reason == FinishReason::length);
  }
  int32_t slot() const { return *slot_; }
  void admit(int32_t slot, std::chrono::steady_clock::time_point now);
  int32_t release_slot();                   // its tokens stay, to be computed anew
  int32_t release_slot(SwappedKv swapped);  // its keys and values stay too, outside the cache
  const SwappedKv* swapped() const { return swapped_.has_value() ? &*swapped_ : nullptr; }

  // ---- the prefix cache. What it is asked for, with the hashes of all units so far.
  KvPrompt cache_prompt(int32_t prefix_block_tokens);
  bool uses_cache() const { return cache_.use; }
  const EngineRequest::Cache& cache() const { return cache_; }
  // The most tokens that it may begin with: whose logits its sink or its policy's scorer waits for
  // is computed.
  int32_t max_cached_tokens() const;
  // The most tokens of its own that others may find there. A lossy policy's sequence keeps what it
  // computes for itself, so that it is compressed; but for what recurs of its prompt and what it
  // was asked to pin.
  int32_t max_inserted_tokens() const { return max_inserted_tokens_; }
  int32_t max_inserted_prompt_tokens() const {  // of its prompt alone
    return std::min(max_inserted_tokens_, static_cast<int32_t>(prompt_tokens_));
  }
  // So many of its prompt's first tokens were asked for before.
  void mark_recurring(int32_t tokens);
  // What is there, as of the last look.
  KvMatch& match() { return match_; }
  const KvMatch& match() const { return match_; }
  // Of its units from the first to this one, salt and format; equal where all of these are equal.
  uint64_t path_hash(int32_t block) const { return path_hashes_[static_cast<size_t>(block)]; }
  std::span<const uint64_t> path_hashes() const { return path_hashes_; }
  int32_t hashed_blocks() const { return static_cast<int32_t>(path_hashes_.size()); }
  void set_cached(int32_t tokens);  // admitted, it finds so many stored

  const KvPolicy& kv_policy() const { return kv_.policy; }
  void set_kv_usage(const KvUsage& usage) { kv_usage_ = usage; }  // for the sink, at its end

  void store(int32_t count);  // the next `count` tokens are in pages

  // Whether the sink is still to hear what the logits after `position` say, and of which kind.
  bool observes(int32_t position) const;
  bool observes_prompt_logprobs(int32_t position) const;
  // Tells the sink, whatever the step is going to bring. prompt_logprobs: of the token that
  // follows, where they are observed.
  void observe(int32_t position, std::span<const float> logits,
               const TokenLogprobs& prompt_logprobs);

  bool append(const Sampled& next);  // a chosen token; false: it is a stop id, and not kept
  void end(FinishReason reason, absl::Status status = absl::OkStatus());

  // Tells the sink what append and end left to tell.
  void publish(std::chrono::steady_clock::time_point now);

 private:
  RequestId request_id_;
  RequestId id_;
  int64_t rank_;
  int32_t priority_;
  size_t prompt_tokens_;
  int32_t shareable_;
  size_t max_length_;            // of tokens_
  std::vector<int32_t> tokens_;  // prompt, then generated
  std::vector<int32_t> stop_ids_;
  SamplingParams sampling_;
  std::vector<int32_t> forced_;  // all that is generated, unless it is empty
  bool observe_logits_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::shared_ptr<EventSink> sink_;

  KvPreset kv_;
  KvUsage kv_usage_;
  std::optional<SwappedKv> swapped_;
  std::string cache_salt_;
  EngineRequest::Cache cache_;
  KvFormat cache_accept_;
  std::vector<uint64_t> block_hashes_;
  std::vector<uint64_t> path_hashes_;
  int32_t max_inserted_tokens_ = std::numeric_limits<int32_t>::max();
  KvMatch match_;
  std::optional<int32_t> cached_tokens_;  // when it was admitted first

  std::chrono::steady_clock::time_point submitted_;
  std::optional<std::chrono::steady_clock::time_point> admitted_;  // first
  std::optional<std::chrono::duration<double>> prefill_time_;

  int32_t stored_ = 0;
  int32_t next_observed_ = 0;  // position; the sink has heard of those before it
  std::optional<int32_t> slot_;
  std::optional<Finish> finish_;

  std::optional<int32_t> unpublished_token_;
  TokenLogprob unpublished_logprob_;
  std::vector<TokenLogprob> unpublished_top_;
};

}  // namespace tessera
